-- Facts of the control plane. Times are seconds since the Unix epoch by the server's clock.

-- One row per model: who publishes it, the next version number, and what its replicas should serve. `revision` grows
-- in the transaction of every change of the target or of a version's state: watchers compare it.
CREATE TABLE models (
    model          TEXT PRIMARY KEY,
    run            TEXT,
    next_version   INTEGER NOT NULL DEFAULT 1,
    revision       INTEGER NOT NULL DEFAULT 1,
    target_version INTEGER
) STRICT, WITHOUT ROWID;

-- One row per rank, of its latest process. Rows are small because they are rewritten often; what is large and rarely
-- read lies in worker_memory.
CREATE TABLE workers (
    worker_id       TEXT PRIMARY KEY,
    model           TEXT NOT NULL,
    role            TEXT NOT NULL CHECK (role IN ('trainer', 'rollout')),
    rank            INTEGER NOT NULL,
    world_size      INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('live', 'lost', 'left')),
    incarnation     TEXT NOT NULL,
    run             TEXT,
    replica         TEXT,
    host            TEXT NOT NULL,
    rack            TEXT,
    zone            TEXT,
    agents          TEXT NOT NULL,               -- JSON list of agent names
    memory_seq      INTEGER NOT NULL DEFAULT 0,  -- grows with every change of its worker_memory row
    serving_version INTEGER,
    tainted         INTEGER NOT NULL DEFAULT 0,
    pause_seconds   REAL,                        -- of its last apply
    readers         INTEGER NOT NULL DEFAULT 0,  -- pulls that read from it first; kept by triggers below
    registered_at   REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_by_model ON workers (model, worker_id);
CREATE INDEX workers_by_replica ON workers (model, replica, rank) WHERE role = 'rollout';
CREATE INDEX workers_by_run ON workers (model, run, state) WHERE role = 'trainer';

CREATE TABLE worker_memory (
    worker_id TEXT PRIMARY KEY REFERENCES workers (worker_id) ON DELETE CASCADE,
    agents    TEXT NOT NULL,  -- JSON, with NIXL metadata
    memory    TEXT            -- JSON
) STRICT, WITHOUT ROWID;

CREATE TABLE replicas (
    model      TEXT NOT NULL,
    replica    TEXT NOT NULL,
    world_size INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (model, replica)
) STRICT, WITHOUT ROWID;

-- `nbytes` is the size of a shard with this layout. `blob` is stored as it was uploaded and never parsed here; it is
-- the last column, so that reading the others does not touch its pages.
CREATE TABLE layouts (
    model      TEXT NOT NULL,
    digest     TEXT NOT NULL,
    nbytes     INTEGER NOT NULL,
    created_at REAL NOT NULL,
    blob       BLOB NOT NULL,
    PRIMARY KEY (model, digest)
) STRICT;

CREATE TABLE versions (
    model            TEXT NOT NULL,
    version          INTEGER NOT NULL,
    run              TEXT NOT NULL,
    step             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('staging', 'ready', 'failed')),
    failure          TEXT,
    reason           TEXT,
    world_size       INTEGER NOT NULL,
    shards           INTEGER NOT NULL,
    deadline_seconds REAL NOT NULL,
    published        INTEGER NOT NULL DEFAULT 0,  -- slots that have published
    nbytes           INTEGER NOT NULL DEFAULT 0,  -- of the distinct shards published so far
    opened_at        REAL NOT NULL,
    ready_at         REAL,
    failed_at        REAL,
    PRIMARY KEY (model, version),
    UNIQUE (model, run, step, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX versions_by_state ON versions (model, state, version);

-- READY and FAILED are final.
CREATE TRIGGER versions_final BEFORE UPDATE OF state ON versions WHEN OLD.state <> 'staging' AND NEW.state <> OLD.state
BEGIN
    SELECT RAISE(ABORT, 'the state of this version is final');
END;

-- What every slot published, for replays and for the record.
CREATE TABLE published (
    model           TEXT NOT NULL,
    version         INTEGER NOT NULL,
    slot            INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    layout_digest   TEXT NOT NULL,
    digest_root     TEXT NOT NULL,
    nbytes          INTEGER NOT NULL,
    memory_slot     INTEGER NOT NULL,
    slot_generation INTEGER NOT NULL,
    worker_id       TEXT NOT NULL,
    epoch           INTEGER NOT NULL,
    published_at    REAL NOT NULL,
    PRIMARY KEY (model, version, slot)
) STRICT, WITHOUT ROWID;

-- The distinct shards, as their first slot published them; every other slot of a shard is equal.
CREATE TABLE shards (
    model         TEXT NOT NULL,
    version       INTEGER NOT NULL,
    shard         INTEGER NOT NULL,
    layout_digest TEXT NOT NULL,
    digest_root   TEXT NOT NULL,
    nbytes        INTEGER NOT NULL,
    first_slot    INTEGER NOT NULL,
    PRIMARY KEY (model, version, shard)
) STRICT, WITHOUT ROWID;

-- A live epoch's memory that holds a shard. Rows are deleted when the bytes are gone.
CREATE TABLE holdings (
    model           TEXT NOT NULL,
    version         INTEGER NOT NULL,
    worker_id       TEXT NOT NULL,
    epoch           INTEGER NOT NULL,
    shard           INTEGER NOT NULL,
    memory_slot     INTEGER NOT NULL,
    slot_generation INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('held', 'draining')),
    PRIMARY KEY (model, version, worker_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdings_by_worker ON holdings (worker_id, memory_slot);

CREATE TABLE holding_reports (
    model     TEXT NOT NULL,
    version   INTEGER NOT NULL,
    worker_id TEXT NOT NULL,
    reporter  TEXT NOT NULL,
    PRIMARY KEY (model, version, worker_id, reporter),
    FOREIGN KEY (model, version, worker_id) REFERENCES holdings (model, version, worker_id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE pulls (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    pull_id       TEXT NOT NULL UNIQUE,
    model         TEXT NOT NULL,
    version       INTEGER NOT NULL,
    step          INTEGER NOT NULL,
    worker_id     TEXT NOT NULL,
    epoch         INTEGER NOT NULL,
    replica       TEXT NOT NULL,
    rank          INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    state         TEXT NOT NULL
                  CHECK (state IN ('assigned', 'fetching', 'staged', 'applying', 'applied', 'failed')),
    failure       TEXT,
    reason        TEXT,
    failed_source TEXT,
    nbytes        INTEGER NOT NULL,
    bytes_done    INTEGER NOT NULL DEFAULT 0,
    fetch_seconds REAL,
    pause_seconds REAL,
    transport     TEXT,
    digest        TEXT,
    assigned_at   REAL NOT NULL,
    updated_at    REAL NOT NULL,
    sources       TEXT NOT NULL,  -- JSON list: worker id of the first source of each shard
    candidates    TEXT NOT NULL   -- JSON list: [shard, [[worker id, epoch], ... best first]]
) STRICT;
CREATE UNIQUE INDEX pulls_open ON pulls (worker_id) WHERE state IN ('assigned', 'fetching', 'staged', 'applying');
CREATE INDEX pulls_by_model ON pulls (model, seq);
CREATE INDEX pulls_by_state ON pulls (model, state, seq);
CREATE INDEX pulls_by_version ON pulls (model, version, seq);
CREATE INDEX pulls_by_worker ON pulls (worker_id, seq);

-- Who may be reading whom: rows exist while the pull is ASSIGNED or FETCHING.
CREATE TABLE pull_sources (
    source_id TEXT NOT NULL,
    version   INTEGER NOT NULL,
    pull_id   TEXT NOT NULL,
    is_first  INTEGER NOT NULL,
    PRIMARY KEY (source_id, version, pull_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX pull_sources_by_pull ON pull_sources (pull_id);

CREATE TRIGGER readers_begin AFTER INSERT ON pull_sources WHEN NEW.is_first
BEGIN
    UPDATE workers SET readers = readers + 1 WHERE worker_id = NEW.source_id;
END;

CREATE TRIGGER readers_end AFTER DELETE ON pull_sources WHEN OLD.is_first
BEGIN
    UPDATE workers SET readers = readers - 1 WHERE worker_id = OLD.source_id;
END;
