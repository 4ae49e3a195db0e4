# Headrace with Spark, of the wheel that `make wheel` has built.
#   make wheel && docker build -t headrace .
#   docker run --rm -v "$PWD":/home/headrace headrace run shop_job.py --bounded
FROM python:3.13-slim

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-21-jre-headless \
    && rm -rf /var/lib/apt/lists/*

COPY dist/headrace-*.whl /tmp/
RUN pip install --no-cache-dir "$(ls /tmp/headrace-*.whl)[all]" && rm /tmp/headrace-*.whl

WORKDIR /home/headrace
ENV HEADRACE_HOME=/home/headrace/.headrace
ENTRYPOINT ["headrace"]
CMD ["--help"]
