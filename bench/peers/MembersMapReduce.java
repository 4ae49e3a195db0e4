import java.io.IOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer;

/** Members by country by Hadoop: profiles, one a line, in; a country and its number, one a line, out. */
public final class MembersMapReduce {
    private MembersMapReduce() {}

    /** Finds the country of a profile. */
    public static final class Country extends Mapper<LongWritable, Text, Text, LongWritable> {
        private static final Pattern WANTED = Pattern.compile("\"country\": \"(\\w+)\"");
        private final LongWritable one = new LongWritable(1);
        private final Text country = new Text();

        @Override
        protected void map(LongWritable at, Text line, Context context)
                throws IOException, InterruptedException {
            Matcher found = WANTED.matcher(line.toString());
            if (found.find()) {
                country.set(found.group(1));
                context.write(country, one);
            }
        }
    }

    /** The folders to read and to write, and the number of reducers. */
    public static void main(String[] words) throws Exception {
        Job job = Job.getInstance(new Configuration(), "members");
        job.setMapperClass(Country.class);
        job.setCombinerClass(LongSumReducer.class);
        job.setReducerClass(LongSumReducer.class);
        job.setNumReduceTasks(Integer.parseInt(words[2]));
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(LongWritable.class);
        FileInputFormat.addInputPath(job, new Path(words[0]));
        FileOutputFormat.setOutputPath(job, new Path(words[1]));
        System.exit(job.waitForCompletion(false) ? 0 : 1);
    }
}
