"""Names of remote files in a disk cache: they depend on the location, not on the reader's credentials."""

import json
import pickle
import subprocess
import sys

import pytest

import slipring
from tests.support.inside import token_of

try:
    from fsspec import AbstractFileSystem
    from pyarrow import fs as arrow_fs
except ModuleNotFoundError:  # all tests here are skipped
    AbstractFileSystem = object
    Handler = object
else:
    Handler = arrow_fs.FileSystemHandler


LOCATIONS = """
import json
import slipring
from pyarrow import fs

def s3fs(secret, endpoint):
    client = {"aws_session_token": secret, "endpoint_url": f"http://user:{secret}@{endpoint}"}
    return {"storage_options": {"key": secret, "secret": secret, "client_kwargs": client}}

def pyarrow(secret, endpoint):
    system = fs.S3FileSystem(access_key=secret, secret_key=secret, endpoint_override=endpoint, region="eu-west-1")
    return {"filesystem": system}

def below(secret, endpoint):
    return {"filesystem": fs.SubTreeFileSystem("bucket", pyarrow(secret, endpoint)["filesystem"])}

locations = [("one", "a:1"), ("another", "a:1"), ("one", "b:1")]
kinds = (s3fs, pyarrow, below)
print(json.dumps([[slipring.Storage(**kind(*at), disk_cache="/kept")._token for at in locations] for kind in kinds]))
"""


def test_names_of_cached_files_depend_on_the_location_and_on_no_secret():
    """In a separate process: pyarrow's S3 has threads that stay."""
    done = subprocess.run([sys.executable, "-c", LOCATIONS], capture_output=True, text=True, check=True)
    tokens = json.loads(done.stdout)
    assert all(one == another != elsewhere for one, another, elsewhere in tokens)
    assert len({one for one, *_ in tokens}) == len(tokens) == 3


def token(filesystem=None, **options):
    """Return the name of a location in a storage with a disk cache, after a trip through pickle."""
    storage = slipring.Storage(filesystem, storage_options=options or None, disk_cache="kept")
    assert token_of(pickle.loads(pickle.dumps(storage))) == token_of(storage)
    return token_of(storage)


SECRETS = [
    "key", "secret", "token", "password", "passwd", "anon", "credential", "credentials",
    "session", "session_kwargs", "sas_token", "account_key", "client_secret", "access_key", "aws_secret_access_key",
    "timeout", "request_timeout", "cache_regions", "loop", "asynchronous", "skip_instance_cache",
    "use_listings_cache",
]  # fmt: skip
LOCATION_OPTIONS = [
    "gist_id", "instance", "username", "user",  # these may name a location
    "root_file_id", "store_name", "bucket", "endpoint_url", "fo", "key_prefix", "tenant",
    "whatever a file system of one's own calls it",
]  # fmt: skip


@pytest.mark.parametrize("within", [None, "client_kwargs", "target_options"])
def test_every_option_but_who_reads_and_how_is_part_of_a_name(within):
    def of(name, value):
        return token(**({name: value} if within is None else {within: {name: value}}))

    for name in SECRETS:
        assert of(name, "one") == of(name, "another"), name
    for name in LOCATION_OPTIONS:
        assert of(name, "one") != of(name, "another"), name
        assert of(name, "one") == of(name, "one"), name


def test_a_value_that_is_no_option_is_part_of_a_name_as_a_whole():
    references = [{"refs": {"key": [url, 0, 10]}} for url in ("s3://a/b", "s3://a/c")]
    assert token(fo=references[0]) == token(fo=dict(references[0])) != token(fo=references[1])
    assert token(roots=["a", "b"]) != token(roots=["a", "c"])
    made = [bytearray(b"one"), bytearray(b"one"), bytearray(b"two")]  # of any class
    assert token(store=made[0]) == token(store=made[1]) != token(store=made[2])
    assert token_of(slipring.Storage()) is None, "nothing is kept"


def test_headers_that_tell_a_place_are_part_of_a_name_and_those_that_tell_who_reads_are_not():
    for name in ("Authorization", "Cookie", "X-Api-Key", "x-api-key", "x-amz-security-token"):
        assert token(headers={name: "one"}) == token(headers={name: "another"}), name
    assert token(headers={"X-Tenant": "one"}) != token(headers={"X-Tenant": "another"})


def test_a_connection_string_tells_its_place_and_not_its_key():
    def of(account, key):
        text = f"DefaultEndpointsProtocol=https;AccountName={account};AccountKey={key}==;EndpointSuffix=core"
        return token(connection_string=text)

    assert of("one", "k") == of("one", "l") != of("two", "k")


class Own(AbstractFileSystem):
    """A user's file system, which takes its options as positional arguments."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)


class Other(Own):
    pass


def test_file_systems_of_ones_own_are_distinguished_by_class_and_by_all_options():
    import fsspec
    from fsspec.implementations.reference import ReferenceFileSystem

    assert token(Own("a", "b")) == token(Own("a", "b"))
    assert len({token(kind(*location)) for kind in (Own, Other) for location in [("a", "b"), ("a", "c"), ()]}) == 6
    assert token(Own(shelf="a", token="x")) == token(Own(shelf="a", token="y")) != token(Own(shelf="b"))
    below = [token(fsspec.filesystem("simplecache", fs=Own(location))) for location in ("a", "b")]
    assert below[0] != below[1]
    several = [token(ReferenceFileSystem({}, fs={"memory": Own(location)})) for location in ("a", "b")]
    assert several[0] != several[1]


class Shelf(Handler):
    """The handler of a user's own file system for pyarrow."""

    def __init__(self, location):
        self.location, self.fs = location, "a file system"

    def _none(self, *args):
        raise NotImplementedError

    get_type_name = normalize_path = get_file_info = get_file_info_selector = create_dir = delete_dir = _none
    delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = open_input_stream = _none
    open_input_file = open_output_stream = open_append_stream = __eq__ = __ne__ = _none


@pytest.mark.parametrize("handler", [Shelf, lambda location: arrow_fs.FSSpecHandler(Own(location))])
def test_handlers_of_pyarrow_are_distinguished_by_their_pickles(handler):
    def of(location):
        return token(arrow_fs.PyFileSystem(handler(location)))

    assert of("a") == of("a") != of("b")
