"""moto's S3 on a port, one request at a time: its conditional put is then as atomic as S3's own."""

from __future__ import annotations

import logging
import sys

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

logging.getLogger("werkzeug").setLevel(logging.ERROR)
make_server("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app)).serve_forever()
