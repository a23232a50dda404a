"""Clients of S3."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config


def an_s3(url: str, **config: Any) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, **config),
    )


def warm() -> None:
    """Load what the first client takes a second to load; the processes that are forked then have it."""
    an_s3("http://127.0.0.1:1").close()
