-- The staging tables of a scratch database attached as `stage`; readers/base.py and readers/staging.py say what a row is.
CREATE TABLE stage.sources (
    src UINTEGER, path VARCHAR, name VARCHAR, role VARCHAR, format VARCHAR, sha256 VARCHAR, bytes BIGINT,
    rank INTEGER, trace_id VARCHAR, base_ns BIGINT, shift_ns BIGINT, events BIGINT,
    kept JSON, dropped JSON, truncated VARCHAR, meta JSON
);
CREATE TABLE stage.strings (src UINTEGER, id UINTEGER, text VARCHAR);
CREATE TABLE stage.events (
    src UINTEGER, seq BIGINT, cat UTINYINT, name UINTEGER, pid BIGINT, tid BIGINT, ts BIGINT, dur BIGINT,
    corr BIGINT, ext BIGINT, device BIGINT, stream BIGINT, shapes UINTEGER, dtypes UINTEGER, bytes BIGINT, extra UINTEGER
);
CREATE TABLE stage.compute_thread (rank INTEGER, src UINTEGER, pid BIGINT, tid BIGINT);  -- filled for CPU engines only
