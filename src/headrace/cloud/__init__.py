"""Object storage in the cloud, behind ``headrace.objects``: S3 and its like, GCS, Azure."""
