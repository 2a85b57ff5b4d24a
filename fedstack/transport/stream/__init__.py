"""The stream transport: frames over TCP, TLS or Unix sockets."""
