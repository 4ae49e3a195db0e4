#!/usr/bin/env bash
# Make sure that .venv/jars has the jars and classes of what bench/kafka.py runs beside Headrace, Kafka
# Streams in peers-VERSION and Flink in flink-VERSION: by the client of Maven repositories that comes
# with PySpark, and by javac.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools/kafka.sh
version=$(awk '$2 == "kafka_2.13" { print $3 }' tools/kafka.jars)
flink_version=1.20.1
broker=.venv/jars/kafka-$version
peers=.venv/jars/peers-$version
flink=.venv/jars/flink-$flink_version
java=$(tools/java.sh)
spark=$(.venv/bin/python -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))')

# fetch FOLDER DEPENDENCIES: the jars appear at once, so one that is cut off leaves none.
fetch() {
    fetched=$(mktemp -d .venv/jars/fetch.XXXXXX)
    trap 'rm -rf "$fetched"' EXIT
    {
        echo '<ivy-module version="2.0"><info organisation="headrace" module="peers"/>'
        echo '<configurations><conf name="default"/></configurations>'
        echo "<dependencies>$2</dependencies></ivy-module>"
    } >"$fetched/wanted.xml"
    "$java/bin/java" -jar "$spark"/jars/ivy-*.jar -warn -cache "$fetched/cache" -m2compatible \
        -ivy "$fetched/wanted.xml" -confs default -types jar bundle \
        -retrieve "$fetched/jars/[artifact]-[revision].[ext]" >&2 </dev/null
    mv -T "$fetched/jars" "$1"
    rm -rf "$fetched"
}

# jar GROUP NAME VERSION: without what it needs itself.
jar() {
    echo "<dependency org=\"$1\" name=\"$2\" rev=\"$3\" conf=\"default->master\" transitive=\"false\"/>"
}

# with_all NAME VERSION: of Flink, with what it needs.
with_all() {
    echo "<dependency org=\"org.apache.flink\" name=\"$1\" rev=\"$2\" conf=\"default->default\"/>"
}

[ -d "$peers" ] || fetch "$peers" \
    "$(jar org.apache.kafka kafka-streams "$version")$(jar org.rocksdb rocksdbjni 9.7.3)"
[ -d "$flink" ] || fetch "$flink" "$(with_all flink-clients $flink_version)$(
    with_all flink-streaming-java $flink_version)$(
    with_all flink-statebackend-rocksdb $flink_version)$(
    with_all flink-connector-base $flink_version)$(
    with_all flink-connector-kafka 3.4.0-1.20)"
mkdir -p "$peers/classes" "$flink/classes"
"$java/bin/javac" -cp "$broker/*:$peers/*" -d "$peers/classes" bench/peers/{Peer,StreamsCount}.java
"$java/bin/javac" -cp "$flink/*" -d "$flink/classes" bench/peers/{Peer,FlinkCount}.java
