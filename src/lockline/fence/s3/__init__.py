"""Objects in S3 behind a fence."""

from .fence import AsyncEntry as AsyncEntry
from .fence import AsyncS3Fence as AsyncS3Fence
from .fence import Entry as Entry
from .fence import ReadAgain as ReadAgain
from .fence import S3Fence as S3Fence
