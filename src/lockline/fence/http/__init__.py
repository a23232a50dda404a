"""Applications that are served over HTTP, behind a fence."""

from .fence import AsgiApp as AsgiApp
from .fence import HttpFence as HttpFence
from .fence import Request as Request
from .fence import WsgiApp as WsgiApp
from .fence import raise_if_stale as raise_if_stale
