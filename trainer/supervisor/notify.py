"""Posts how a run has ended to an address, as JSON. The address may have a token in it, so no message shows it."""

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

VARIABLE = "NOTIFY_URL"
"""The environment variable with the address."""
PAUSES = (1.0, 5.0)
"""Seconds between two tries."""
TIMEOUT_SECONDS = 10.0
NO_URL = "it is not a URL of http or https"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would be followed without the content."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


OPENER = urllib.request.build_opener(_NoRedirects)


def notify(url: str, content: Mapping[str, object]) -> bool:
    """Post the content; return whether that has succeeded. A failure is logged."""
    for pause in (*PAUSES, None):
        if not (reason := _post(url, json.dumps(content).encode())):
            return True
        if pause:
            time.sleep(pause)
    logger.warning(f"the outcome is not posted to the address of run.notifySecret: {reason}")
    return False


def _post(url: str, body: bytes) -> str:
    """Post once; return the reason why that failed, or nothing."""
    if not url.startswith(("http://", "https://")):
        return NO_URL
    try:
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
        with OPENER.open(request, timeout=TIMEOUT_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", "")) or type(error).__name__
    except ValueError:
        return NO_URL
