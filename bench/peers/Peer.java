// What the programs beside the jobs of bench/kafka.py have in common: what they are started with, and the
// message that they make of one.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;

record Peer(String servers, String source, String target, String name, String folder, long messages) {
    static Peer of(String[] words) {
        return new Peer(words[0], words[1], words[2], words[3], words[4], Long.parseLong(words[5]));
    }

    static byte[] counted(ObjectMapper json, JsonNode row, long count) throws java.io.IOException {
        ObjectNode made = json.createObjectNode();
        made.put("id", row.get("id").asLong());
        made.put("count", count);
        made.put("sent", row.get("sent").asDouble());
        return json.writeValueAsBytes(made);
    }

    void print(long began) {
        double seconds = (System.nanoTime() - began) / 1e9;
        System.out.println("{\"messages\": " + messages + ", \"seconds\": " + seconds + "}");
    }
}
