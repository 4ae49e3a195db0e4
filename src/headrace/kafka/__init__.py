"""Topics of Kafka as inputs and outputs of jobs: a plug-in, found by addresses ``kafka://``.

``address`` reads addresses, ``clients`` has the clients of a process, ``topic_log`` reads a topic
as a ``ReadableLog``, ``formats`` has what is in messages, and ``sink`` writes epochs in
transactions.
"""
