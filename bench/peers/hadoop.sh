#!/usr/bin/env bash
# Make sure that .venv/jars/hadoop-VERSION has Hadoop's MapReduce with all that it needs, and the
# program of bench/yarn_members.py in it: by the client of Maven repositories that comes with PySpark,
# and by javac.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/yarn.sh
version=3.5.0
hadoop=.venv/jars/hadoop-$version
java=$(tools/java.sh)
spark=$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')
parts="mapreduce-client-app mapreduce-client-shuffle mapreduce-client-jobclient
yarn-server-nodemanager hdfs-client common"

if [ ! -d "$hadoop" ]; then # it appears at once, so one that is cut off leaves none
    fetched=$(mktemp -d .venv/jars/fetch.XXXXXX)
    trap 'rm -rf "$fetched"' EXIT
    {
        echo '<ivy-module version="2.0"><info organisation="headrace" module="peers"/>'
        echo '<configurations><conf name="default"/></configurations><dependencies>'
        for part in $parts; do
            echo "<dependency org=\"org.apache.hadoop\" name=\"hadoop-$part\" rev=\"$version\""
            echo ' conf="default->default"/>'
        done
        echo '</dependencies></ivy-module>'
    } >"$fetched/wanted.xml"
    "$java/bin/java" -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
        -ivy "$fetched/wanted.xml" -confs default -types jar bundle \
        -retrieve "$fetched/jars/[artifact]-[revision](-[classifier]).[ext]" >&2 </dev/null
    mv -T "$fetched/jars" "$hadoop"
fi
mkdir -p "$hadoop/classes"
"$java/bin/javac" -proc:none -cp "$hadoop/*" -d "$hadoop/classes" bench/peers/MembersMapReduce.java
"$java/bin/jar" --create --file "$hadoop/members.jar" -C "$hadoop/classes" .
