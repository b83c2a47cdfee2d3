"""Addresses and texts with a secret in them, spelled correctly and mistyped."""

from __future__ import annotations

SECRET = "hunter2-of-the-storage"

_HOST = "127.0.0.1:1"
SECRET_URLS = tuple(
    spelling.format(s=SECRET, h=_HOST)
    for spelling in (
        # as they should be
        "postgresql://me:{s}@{h}/db",
        "postgres://me:{s}@{h}/db",
        "postgresql+psycopg://me:{s}@{h}/db",
        "postgresql+psycopg2://me:{s}@{h}/db",
        "mysql://me:{s}@{h}/db",
        "mysql+pymysql://me:{s}@{h}/db?charset=utf8",
        "POSTGRESQL://me:{s}@{h}/db",
        "redis://:{s}@{h}/0",
        "http://me:{s}@{h}",
        "https://me:{s}@{h}/path",
        "https://{s}@{h}/path",
        "https://{s}:@{h}/path",
        "https://{s}:x-oauth-basic@{h}/path",
        "ray://me:{s}@{h}",
        "sqlite://me:{s}@{h}/db",
        "postgresql://me:{s}@[::1]:1/db",
        "postgresql://{h}/db?user=me&password={s}",
        "postgresql://me@{h}/db?password={s}",
        "postgresql://me@{h}/db?sslpassword={s}",
        "postgresql://me@{h}/db?connect_timeout=1&PASSWORD={s}",
        "postgresql://me@{h}/db?pass%77ord={s}",
        "http://{h}/?token={s}",
        "http://{h}/?token={s}&password={s}",
        "http://{h}/x.zip?access_token={s}",
        "http://{h}/x.zip?X-Amz-Signature={s}&X-Amz-Expires=60",
        "http://{h}/x.zip?sig={s}",
        "http://{h}/x.zip?api_key={s}",
        "http://{h}/x.zip?key={s}#top",
        "http://{h}/x.zip#access_token={s}",
        "ray://{h}?token={s}",
        # characters that belong escaped
        "postgresql://me:a@{s}@{h}/db",
        "postgresql://me:{s}@more@{h}/db",
        "postgresql://me:@{s}@{h}/db",
        "postgresql://me:{s}/more@{h}/db",
        "postgresql://me:a/{s}@{h}/db",
        "postgresql://me:{s}#more@{h}/db",
        "postgresql://me:a?{s}@{h}/db",
        "postgresql://me:a:{s}@{h}/db",
        'postgresql://me:"{s}"@{h}/db',
        "postgresql://me:'{s}'@{h}/db",
        "postgresql://me:a b {s}@{h}/db",
        "postgresql://me:{s} @{h}/db",
        "postgresql://me:%{s}@{h}/db",
        "postgresql://me:\x1b[31m{s}@{h}/db",
        "postgresql://me%3A{s}@{h}/db",
        "postgresql://me@corp:{s}@{h}/db",
        # slips of the keyboard
        "postgresql:/me:{s}@{h}/db",
        "postgresql:///me:{s}@{h}/db",
        "postgresql:////me:{s}@{h}/db",
        "postgresql//me:{s}@{h}/db",
        "postgresql:me:{s}@{h}/db",
        "postgresql:\\\\me:{s}@{h}/db",
        "postgresql ://me:{s}@{h}/db",
        "//me:{s}@{h}/db",
        "me:{s}@{h}/db",
        "postgresql://me:{s}/db",
        "postgresql://me:{s}",
        "http://me:{s}/",
        "postgresql%3A%2F%2Fme%3A{s}%40127.0.0.1%2Fdb",
        "'postgresql://me:{s}@{h}/db'",
        "http//{h}?password={s}",
        "http:{h}&token={s}",
    )
)

# What libraries and users write of secrets beside addresses.
SECRET_TEXTS = tuple(
    spelling.format(s=SECRET)
    for spelling in (
        "host=db password={s} user=me",
        "host=db password='{s}' user=me",
        "host=db password='a {s} c' user=me",
        "host=db password = 'a {s} c' user=me",
        "host=db passwd='a b {s}'",
        r"host=db password='it\'s {s}' user=me",
        'password="a {s} c"',
        "{{'password': 'a {s} c', 'host': 'db'}}",
        "AUTOFIT_STORAGE_KEY={s} autofit serve",
        "export AUTOFIT_STORAGE_KEY='{s}'",
        "authtoken={s}",
        "login(hf_token={s})",
        "HF_TOKEN={s}",
        "HF_TOKEN=7{s}",
        "--token={s}",
        "token={s}",
        "token='{s}', name='x'",
        "RAY_AUTH_TOKEN={s}",
        "Authorization: Basic {s}=",
        "authorization: token {s}",
        "Proxy-Authorization: Basic {s}",
        "{{'Authorization': 'Basic {s}'}}",
        "Authorization: Bearer {s}",
    )
)
