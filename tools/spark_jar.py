"""Compiles the Java classes for Spark into their jar: ``make jar``, after a change of a source.

The jar is in the tree, so that neither an installation nor its users need a Java compiler. It names
the digest of the sources that it is made of, which a test compares.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pyspark

HERE = Path(__file__).parent.parent / "src/headrace/spark/java"
SOURCES, JAR = sorted(HERE.glob("*.java")), HERE / "headrace.jar"
JARS = (
    "spark-sql", "spark-catalyst", "spark-common-utils", "spark-core", "spark-unsafe",
    "scala-library", "jackson-", "pickle", "arrow-", "flatbuffers", "hadoop-client-api",
)  # fmt: skip
MANIFEST = "Manifest-Version: 1.0\r\n\r\n"
BEGIN = (1980, 1, 1, 0, 0, 0)


def digest() -> str:
    """Return the digest of the sources, which the jar names."""
    return hashlib.sha256(b"".join(one.read_bytes() for one in SOURCES)).hexdigest()


def main() -> None:
    """Write the jar."""
    jars = Path(pyspark.__file__).parent / "jars"
    path = ":".join(str(one) for name in JARS for one in sorted(jars.glob(f"{name}*.jar")))
    java = os.environ.get("JAVA_HOME")
    compiler = Path(java) / "bin/javac" if java else Path("javac")
    with tempfile.TemporaryDirectory() as folder:
        command = [str(compiler), "--release", "17", "-d", folder, "-cp", path]
        command += map(str, SOURCES)
        subprocess.run(command, check=True)
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", BEGIN), MANIFEST)
            jar.writestr(zipfile.ZipInfo("SOURCE.sha256", BEGIN), digest())
            for one in sorted(Path(folder).rglob("*.class")):
                name = str(one.relative_to(folder))
                jar.writestr(zipfile.ZipInfo(name, BEGIN), one.read_bytes())
    print(f"{JAR.name}: {JAR.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
