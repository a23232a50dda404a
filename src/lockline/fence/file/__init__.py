"""Files behind a fence, and marks in files."""

from .fence import AsyncFileFence as AsyncFileFence
from .fence import FileFence as FileFence
