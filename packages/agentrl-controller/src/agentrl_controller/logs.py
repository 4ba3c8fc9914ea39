"""Structured logs: one JSON object a line, with the session where there is one, and no secrets."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_FIELDS = ("session", "task", "worker")


class JsonFormatter(logging.Formatter):
    """A record as a line of JSON: time, level, logger, message, and what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field in _FIELDS:
            if hasattr(record, field):
                content[field] = getattr(record, field)
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def set_up_logging(level: int = logging.INFO) -> None:
    """Write the program's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
