"""Keys in Redis behind a fence, and marks in Redis."""

from .fence import RedisFence as RedisFence
