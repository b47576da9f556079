//! Tests of the inside of a store: tokens after a power cut, files of other programs, a full disk.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::acquire::try_acquire;
use super::admin::list;
use super::config::Config;
use super::connection::open::{LOCK_TIMEOUT, frames_in_log, set_lock_timeout};
use super::connection::store::OpenStore;
use super::layout::schema::TOKEN_BLOCK;
use super::liveness::LivenessFile;
use super::release::release;
use super::renew::renew;
use super::store_path::StorePath;
use super::wait::{HintWatch, HintWatches, WatchFor};
use crate::backend::Attempt;
use crate::backend::{Claim, Grant, HolderInfo, Mode, Owner, Scope};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::support::url::Url;
use crate::token::TOKENS_PER_GRANT;

fn config(folder: &TempDir) -> Config {
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    Config::from_url(Url::parse(&url).unwrap()).unwrap()
}

fn open(folder: &TempDir) -> Result<OpenStore> {
    OpenStore::open(&config(folder))
}

fn refused(folder: &TempDir) -> Error {
    open(folder).err().expect("the store was opened")
}

/// The file as SQLite alone sees it.
fn raw(folder: &TempDir) -> Connection {
    Connection::open(folder.path().join("locks.db")).unwrap()
}

fn claim(key: &str) -> Claim {
    Claim::new(Key::new(key).unwrap(), Owner::random(), Duration::from_secs(60))
}

fn acquire(store: &mut OpenStore, claim: &Claim) -> Grant {
    try_acquire(store, claim).unwrap().granted().unwrap()
}

fn number(store: &OpenStore, sql: &str) -> i64 {
    store.connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn after_a_restart_of_the_machine_tokens_continue_behind_every_reserved_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let first = acquire(&mut store, &claim("a")).token.as_i64();
    for n in 0..900 {
        acquire(&mut store, &claim(&n.to_string()));
    }
    store.close();
    let read = "SELECT reserved FROM meta";
    let reserved: i64 = raw(&folder).query_row(read, [], |row| row.get(0)).unwrap();
    // A power cut may undo what was not synced: the counter, but never the limit that it is below.
    let rolled_back = "UPDATE meta SET next = ?1, boot = 'another boot'";
    raw(&folder).execute(rolled_back, [first]).unwrap();
    let mut store = open(&folder).unwrap();
    let next = acquire(&mut store, &claim("a")).token.as_i64();
    assert_eq!(next, reserved + 1, "a token below {reserved} may have been granted before");
    assert!(next > first + 900 * i64::from(TOKENS_PER_GRANT));
}

#[test]
fn after_a_restart_of_the_machine_dead_sessions_are_removed_and_the_rest_get_one_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut living = open(&folder).unwrap();
    let mut dead = open(&folder).unwrap();
    let (kept, lost) = (claim("kept"), claim("lost"));
    acquire(&mut living, &kept);
    acquire(&mut dead, &lost);
    // As by `kill -9`: the liveness file is unlocked, the rows stay.
    drop(dead);
    let far = "UPDATE claim SET expires = expires + 1000000000";
    living.connection.execute(far, []).unwrap();
    living.connection.execute("UPDATE meta SET boot = 'another boot'", []).unwrap();
    let mut store = open(&folder).unwrap();
    acquire(&mut store, &claim("lost"));
    match try_acquire(&mut store, &claim("kept")).unwrap() {
        Attempt::Busy(busy) => {
            let left = busy.retry_after.unwrap();
            assert!(left <= kept.ttl + Duration::from_millis(1), "{busy:?}");
        }
        Attempt::Granted(grant) => panic!("{grant:?} of a key whose holder lives"),
    }
}

#[test]
fn after_a_restart_of_the_machine_several_holders_are_brought_up_to_date_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut stores = [open(&folder).unwrap(), open(&folder).unwrap(), open(&folder).unwrap()];
    let mut mine = claim("a");
    for (n, store) in (1..).zip(&mut stores) {
        mine = Claim { owner: Owner::random(), mode: Mode::Shared, ..mine };
        mine.ttl = Duration::from_secs(n * 60);
        acquire(store, &mine);
    }
    let [dead, living, last] = stores;
    drop(dead);
    let far = "UPDATE claim SET expires = expires + 1000000000";
    living.connection.execute(far, []).unwrap();
    living.connection.execute(&far.replace("claim", "holder"), []).unwrap();
    living.connection.execute("UPDATE meta SET boot = 'another boot'", []).unwrap();
    let mut store = open(&folder).unwrap();
    let left = list(&store, Scope::Key(&mine.key)).unwrap().remove(0).holders;
    let left: Vec<_> = left.iter().map(|holder| holder.ttl_left.unwrap().as_secs()).collect();
    assert!(left.len() == 2 && left[0] <= 120 && left[1] <= 180, "{left:?}");
    assert!(left[0] > 60 && left[1] > 120, "{left:?}");
    let ends = "SELECT (SELECT expires FROM claim) - max(expires) FROM holder";
    assert_eq!(number(&store, ends), 0, "the marker ends with the last of them");
    assert!(matches!(try_acquire(&mut store, &claim("a")).unwrap(), Attempt::Busy(_)));
    drop((living, last));
    acquire(&mut store, &claim("a"));
}

#[test]
fn opening_an_up_to_date_store_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).unwrap().close();
    let one = open(&folder).unwrap();
    let before = number(&one, "PRAGMA data_version");
    open(&folder).unwrap().close();
    assert_eq!(number(&one, "PRAGMA data_version"), before);
}

#[test]
fn tokens_grow_without_a_gap_when_a_block_is_used_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let (mut mine, per_grant) = (claim("a"), u64::from(TOKENS_PER_GRANT));
    let mut last = acquire(&mut store, &mine).token.get();
    let grants = TOKEN_BLOCK / i64::from(TOKENS_PER_GRANT);
    assert_eq!(grants, 1024, "a synced commit for so many grants");
    for _ in 0..2 * grants {
        release(&mut store, &mine).unwrap();
        let next = acquire(&mut store, &mine).token.get();
        assert_eq!(next, last + per_grant);
        last = next;
    }
    release(&mut store, &mine).unwrap();
    mine.mode = Mode::Shared;
    assert_eq!(acquire(&mut store, &mine).token.get(), last + per_grant);
    let other = Claim { owner: Owner::random(), ..mine };
    assert_eq!(acquire(&mut store, &other).token.get(), last + per_grant + 1, "one for a reader");
    assert_eq!(number(&store, "PRAGMA synchronous"), 1, "every commit would be synced");
}

#[test]
fn maintenance_reserves_tokens_before_they_run_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let left = |store: &OpenStore| number(store, "SELECT reserved - next FROM meta");
    acquire(&mut store, &claim("a"));
    store.connection.execute("UPDATE meta SET next = reserved - 5000", []).unwrap();
    acquire(&mut store, &claim("b"));
    let few = 5000 - i64::from(TOKENS_PER_GRANT);
    assert_eq!(left(&store), few);
    store.run_maintenance();
    assert_eq!(left(&store), few + TOKEN_BLOCK);
    store.run_maintenance();
    assert_eq!(left(&store), few + TOKEN_BLOCK);
}

#[test]
fn a_database_of_another_program_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    raw(&folder).execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)").unwrap();
    let file = folder.path().join("locks.db");
    let before = std::fs::read(&file).unwrap();
    let error = refused(&folder);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("not a tenure store"), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    raw(&folder).execute_batch("PRAGMA user_version = 1").unwrap();
    assert_eq!(refused(&folder).kind(), ErrorKind::Invalid);
}

#[test]
fn a_newer_store_is_refused_with_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).unwrap().close();
    raw(&folder).execute_batch("PRAGMA user_version = 7").unwrap();
    let error = refused(&folder);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("schema 7, this one knows 2"), "{error}");
}

#[test]
fn a_full_disk_makes_the_store_unavailable_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let kept = claim("kept");
    let token = acquire(&mut store, &kept).token;
    let pages = number(&store, "PRAGMA page_count");
    store.connection.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    let mut large = claim("large");
    large.holder_info = HolderInfo::new("n", "h", 1, "x".repeat(20_000));
    let error = try_acquire(&mut store, &large).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let folder_name = folder.path().canonicalize().unwrap().display().to_string();
    assert!(error.to_string().contains(&format!("no space in `{folder_name}`")), "{error}");
    assert_eq!(list(&store, Scope::Prefix("")).unwrap().len(), 1);
    store.connection.execute_batch("PRAGMA max_page_count = 100000").unwrap();
    assert_eq!(acquire(&mut store, &kept).token, token);
    assert!(acquire(&mut store, &large).token > token);
    let check: String =
        store.connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn the_error_of_a_locked_file_names_the_process_that_locks_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    acquire(&mut store, &claim("a"));
    let other = raw(&folder);
    other.execute_batch("BEGIN IMMEDIATE; UPDATE meta SET next = next").unwrap();
    set_lock_timeout(Duration::from_millis(100));
    let began = Instant::now();
    let error = try_acquire(&mut store, &claim("b")).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let blocker = format!("locked by process {}", std::process::id());
    assert!(error.to_string().contains(&blocker), "{error}");
    // Readers do not need the write lock.
    assert_eq!(list(&store, Scope::Prefix("")).unwrap().len(), 1);
    other.execute_batch("ROLLBACK").unwrap();
    set_lock_timeout(LOCK_TIMEOUT);
    acquire(&mut store, &claim("b"));
}

#[test]
fn a_renewal_leaves_time_for_another_before_the_lease_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let mut mine = claim("a");
    mine.ttl = Duration::from_millis(4000);
    acquire(&mut store, &mine);
    let other = raw(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let outcome = renew(&mut store, std::slice::from_ref(&mine)).remove(0);
    assert!(began.elapsed() < mine.ttl / 2, "{:?}", began.elapsed());
    assert_eq!(
        outcome.unwrap_err().kind(),
        ErrorKind::Unavailable,
        "an unknown outcome is not a loss"
    );
    other.execute_batch("ROLLBACK").unwrap();
    assert!(renew(&mut store, &[mine]).remove(0).is_ok());
}

#[test]
fn checkpoints_are_made_after_the_response() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let mine = claim("a");
    let size = |store: &OpenStore| std::fs::metadata(&store.path.file).unwrap().len();
    store.run_maintenance();
    let before = size(&store);
    for _ in 0..150 {
        acquire(&mut store, &mine);
        release(&mut store, &mine).unwrap();
    }
    assert_eq!(size(&store), before, "a request made a checkpoint while its caller waited");
    store.run_maintenance();
    assert!(size(&store) > before);
    assert_eq!(frames_in_log(&store.connection).unwrap(), 0);
}

#[test]
fn a_removed_watch_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (open(&folder).unwrap(), open(&folder).unwrap());
    acquire(&mut one, &claim("a"));
    let mut watches = HintWatches::default();
    for (id, queued) in [(1, true), (2, false)] {
        let mut waiter = claim("a");
        waiter.waits = queued;
        assert!(matches!(try_acquire(&mut two, &waiter).unwrap(), Attempt::Busy(_)));
        let (fire, mut fired) = oneshot::channel();
        let wait_for = WatchFor::Free { queued };
        let watch = HintWatch { key: waiter.key.clone(), owner: waiter.owner, wait_for, fire };
        watches.add(&mut two, id, watch);
        assert!(watches.next_poll().is_some());
        assert!(fired.try_recv().is_err());
        assert!(watches.remove(id).is_some());
        assert!(watches.is_empty());
    }
}

#[test]
fn a_sweep_removes_dead_sessions_and_keeps_living_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let session = store.session().unwrap();
    let path = StorePath::prepare(&config(&folder)).unwrap();
    let living = LivenessFile::create(&path, false).unwrap();
    for n in 0..3 {
        let mut dead = open(&folder).unwrap();
        acquire(&mut dead, &claim(&n.to_string()));
        dead.bind_wake_socket().unwrap();
    }
    store.sweep();
    let mut left = path.sessions.names();
    let mut expected = [session.liveness_name(), living.session.liveness_name()];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(number(&store, "SELECT count(*) FROM claim"), 0);
}

#[test]
fn a_dead_session_hands_off_more_keys_than_a_block_has_tokens_for() {
    let folder = tempfile::tempdir().unwrap();
    let (mut dead, mut store) = (open(&folder).unwrap(), open(&folder).unwrap());
    let grants = TOKEN_BLOCK / i64::from(TOKENS_PER_GRANT);
    let mut waiters: Vec<_> = (0..2 * grants + 10).map(|n| claim(&n.to_string())).collect();
    for waiter in &mut waiters {
        acquire(&mut dead, waiter);
        (waiter.owner, waiter.waits) = (Owner::random(), true);
        assert!(matches!(try_acquire(&mut store, waiter).unwrap(), Attempt::Busy(_)));
    }
    drop(dead);
    acquire(&mut store, &waiters[0]);
    let held = "SELECT count(*) FROM claim WHERE place = 0 AND token IS NOT NULL";
    assert_eq!(number(&store, held), waiters.len() as i64);
}

/// An earlier version, or a foreign client, may have written such a row.
#[test]
fn a_row_with_an_invalid_key_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    acquire(&mut store, &claim("a"));
    let copy = "INSERT INTO claim SELECT key || ' ', place, owner, token, ttl, expires, since, \
                session, pid, note, weight, capacity, tokens FROM claim";
    store.connection.execute(copy, []).unwrap();
    let listed = list(&store, Scope::Prefix("")).unwrap();
    let keys: Vec<_> = listed.iter().map(|holding| holding.key.as_str()).collect();
    assert_eq!(keys, ["a"]);
    store.close();
}
