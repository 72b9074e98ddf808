"""moto's S3 server with a folder's files: ``python -m tests.remote.s3_server FOLDER``.

All files are in the bucket "shards", and those of its folder "classes" in a bucket of this name.

It is a process of its own, prints its port, and ends when its standard input ends.
"""

import contextlib
import io
import os
import pathlib
import sys

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


def main():
    os.environ.update(KEYS)
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a greeting
        server.start()
    port = server.get_host_and_port()[1]
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    folder = pathlib.Path(sys.argv[1])
    for bucket, root in (("shards", folder), ("classes", folder / "classes")):
        client.create_bucket(Bucket=bucket)
        for path in root.rglob("*"):
            if path.is_file():
                client.put_object(Bucket=bucket, Key=str(path.relative_to(root)), Body=path.read_bytes())
    print(port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
