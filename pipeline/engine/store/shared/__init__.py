"""A store that other machines reach: the same outputs under the same keys, as objects of S3, GCS or a folder."""
