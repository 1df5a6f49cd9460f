"""``python -m weightcast_server``: a server with the settings of the environment."""

from weightcast_server.run import serve

if __name__ == "__main__":
    serve()
