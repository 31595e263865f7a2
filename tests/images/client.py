"""A client of the model server, which runs inside a container: one request, whose status and body it prints as JSON.

Arguments: PATH, and for a POST the content type. The body is standard input. With --slowly, it sends half of the body,
prints a line, waits for one on standard input, and sends the rest; its standard input has the body in its first line.
"""

import http.client
import json
import sys


def main(path: str, content_type: str = "", slowly: str = "") -> None:
    """Send the request, and print the answer."""
    body = (sys.stdin.readline() if slowly else sys.stdin.read()).encode()
    connection = http.client.HTTPConnection("localhost", 8080, timeout=60)
    connection.putrequest("POST" if content_type else "GET", path)
    connection.putheader("content-length", str(len(body)))
    if content_type:
        connection.putheader("content-type", content_type)
    connection.endheaders()
    half = len(body) // 2 if slowly else 0
    if slowly:
        connection.send(body[:half])
        print("half", flush=True)
        sys.stdin.readline()
    connection.send(body[half:])
    answer = connection.getresponse()
    print(json.dumps([answer.status, answer.read().decode()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
