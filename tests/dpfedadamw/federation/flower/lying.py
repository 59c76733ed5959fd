"""A lying SuperLink: it answers every request alike."""

from __future__ import annotations

import http.server


class Lying(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's `answer`, and notes where it was asked."""

    def do_POST(self):  # the library's name
        self.rfile.read(int(self.headers["content-length"]))
        status, headers, body = self.server.answer
        self.server.asked.append(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""
