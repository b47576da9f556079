//! What can only be seen from inside: tokens across power cuts, files of others, a full disk.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::beacon::Beacon;
use super::place::{Place, Settings};
use super::schema::{BLOCK, LONGEST, be_patient};
use super::store::Store;
use super::wait::{Watch, Watches, Wish};
use crate::backend::{Claim, Grant, Note, Owner, Scope};
use crate::claim::Attempt;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::options::Options;

fn settings(folder: &TempDir) -> Settings {
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    Settings::take(Options::parse(&url).unwrap()).unwrap()
}

fn open(folder: &TempDir) -> Result<Store> {
    Store::open(&settings(folder))
}

fn refused(folder: &TempDir) -> Error {
    open(folder).err().expect("this is not to be opened")
}

/// The file as SQLite alone sees it.
fn raw(folder: &TempDir) -> Connection {
    Connection::open(folder.path().join("locks.db")).unwrap()
}

fn claim(key: &str) -> Claim {
    Claim::new(Key::new(key).unwrap(), Owner::random(), Duration::from_secs(60))
}

fn take(store: &mut Store, claim: &Claim) -> Grant {
    store.take(claim).unwrap().granted().unwrap()
}

fn number(store: &Store, sql: &str) -> i64 {
    store.conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn a_start_of_the_machine_goes_on_behind_every_reserved_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let first = take(&mut store, &claim("a")).token.as_i64();
    for n in 0..900 {
        take(&mut store, &claim(&n.to_string()));
    }
    store.close();
    let read = "SELECT reserved FROM meta";
    let reserved: i64 = raw(&folder).query_row(read, [], |row| row.get(0)).unwrap();
    // A power cut may take back what was not synced: the counter, but never what it is held below.
    let rolled_back = "UPDATE meta SET next = ?1, boot = 'another boot'";
    raw(&folder).execute(rolled_back, [first]).unwrap();
    let mut store = open(&folder).unwrap();
    let next = take(&mut store, &claim("a")).token.as_i64();
    assert_eq!(next, reserved + 1, "a token below {reserved} may have been given out before");
    assert!(next > first + 900);
}

#[test]
fn a_start_of_the_machine_drops_the_dead_and_gives_the_rest_one_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut living = open(&folder).unwrap();
    let mut dead = open(&folder).unwrap();
    let (kept, lost) = (claim("kept"), claim("lost"));
    take(&mut living, &kept);
    take(&mut dead, &lost);
    // As by `kill -9`: the beacon goes out, the rows stay.
    drop(dead);
    let far = "UPDATE claim SET expires = expires + 1000000000";
    living.conn.execute(far, []).unwrap();
    living.conn.execute("UPDATE meta SET boot = 'another boot'", []).unwrap();
    let mut store = open(&folder).unwrap();
    take(&mut store, &claim("lost"));
    match store.take(&claim("kept")).unwrap() {
        Attempt::Busy(busy) => {
            let left = busy.retry_after.unwrap();
            assert!(left <= kept.ttl + Duration::from_millis(1), "{busy:?}");
        }
        Attempt::Granted(grant) => panic!("took {grant:?} from somebody who lives"),
    }
}

#[test]
fn an_opening_without_news_writes_nothing() {
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
    let mine = claim("a");
    let mut last = take(&mut store, &mine).token.get();
    for _ in 0..2 * BLOCK {
        store.release(&mine).unwrap();
        let next = take(&mut store, &mine).token.get();
        assert_eq!(next, last + 1);
        last = next;
    }
    assert_eq!(number(&store, "PRAGMA synchronous"), 1, "every commit would be synced");
}

#[test]
fn tokens_are_reserved_before_they_run_out_when_there_is_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let left = |store: &Store| number(store, "SELECT reserved - next FROM meta");
    take(&mut store, &claim("a"));
    store.conn.execute("UPDATE meta SET next = reserved - 10", []).unwrap();
    take(&mut store, &claim("b"));
    assert_eq!(left(&store), 9);
    store.tidy();
    assert_eq!(left(&store), 9 + BLOCK);
    store.tidy();
    assert_eq!(left(&store), 9 + BLOCK);
}

#[test]
fn a_database_of_somebody_else_is_refused_and_left_as_it_was() {
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
fn a_newer_store_is_refused_with_both_numbers() {
    let folder = tempfile::tempdir().unwrap();
    open(&folder).unwrap().close();
    raw(&folder).execute_batch("PRAGMA user_version = 7").unwrap();
    let error = refused(&folder);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("schema 7, this one knows 1"), "{error}");
}

#[test]
fn a_full_disk_is_doubt_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let kept = claim("kept");
    let token = take(&mut store, &kept).token;
    let pages = number(&store, "PRAGMA page_count");
    store.conn.execute_batch(&format!("PRAGMA max_page_count = {pages}")).unwrap();
    let mut large = claim("large");
    large.note = Note::new("n", "h", 1, "x".repeat(20_000));
    let error = store.take(&large).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let folder_name = folder.path().canonicalize().unwrap().display().to_string();
    assert!(error.to_string().contains(&format!("no space in `{folder_name}`")), "{error}");
    assert_eq!(store.list(Scope::Prefix("")).unwrap().len(), 1);
    store.conn.execute_batch("PRAGMA max_page_count = 100000").unwrap();
    assert_eq!(take(&mut store, &kept).token, token);
    assert!(take(&mut store, &large).token > token);
    let check: String =
        store.conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[test]
fn a_file_that_stays_locked_names_who_locks_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    take(&mut store, &claim("a"));
    let other = raw(&folder);
    other.execute_batch("BEGIN IMMEDIATE; UPDATE meta SET next = next").unwrap();
    be_patient(Duration::from_millis(100));
    let began = Instant::now();
    let error = store.take(&claim("b")).unwrap_err();
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let culprit = format!("locked by process {}", std::process::id());
    assert!(error.to_string().contains(&culprit), "{error}");
    // Who looks is not in the way of who writes.
    assert_eq!(store.list(Scope::Prefix("")).unwrap().len(), 1);
    other.execute_batch("ROLLBACK").unwrap();
    be_patient(LONGEST);
    take(&mut store, &claim("b"));
}

#[test]
fn a_renewal_leaves_time_for_another_before_the_lease_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let mut mine = claim("a");
    mine.ttl = Duration::from_millis(4000);
    take(&mut store, &mine);
    let other = raw(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let answer = store.renew(std::slice::from_ref(&mine)).remove(0);
    assert!(began.elapsed() < mine.ttl / 2, "{:?}", began.elapsed());
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable, "doubt is not loss");
    other.execute_batch("ROLLBACK").unwrap();
    assert!(store.renew(&[mine]).remove(0).is_ok());
}

#[test]
fn a_log_is_put_into_the_file_after_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let mine = claim("a");
    let size = |store: &Store| std::fs::metadata(&store.place.file).unwrap().len();
    store.tidy();
    let before = size(&store);
    for _ in 0..150 {
        take(&mut store, &mine);
        store.release(&mine).unwrap();
    }
    assert_eq!(size(&store), before, "a verb has checkpointed in the caller's time");
    store.tidy();
    assert!(size(&store) > before);
    assert_eq!(super::schema::unmerged(&store.conn).unwrap(), 0);
}

#[test]
fn a_hint_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut two) = (open(&folder).unwrap(), open(&folder).unwrap());
    take(&mut one, &claim("a"));
    let mut watches = Watches::default();
    for (id, queued) in [(1, true), (2, false)] {
        let mut waiter = claim("a");
        waiter.waits = queued;
        assert!(matches!(two.take(&waiter).unwrap(), Attempt::Busy(_)));
        let (fire, mut fired) = oneshot::channel();
        let wish = Wish::Free { queued };
        let watch = Watch { key: waiter.key.clone(), owner: waiter.owner, wish, fire };
        watches.add(&mut two, id, watch);
        assert!(watches.next_look().is_some());
        assert!(fired.try_recv().is_err());
        assert!(watches.remove(id).is_some());
        assert!(watches.is_empty());
    }
}

#[test]
fn a_sweep_clears_up_after_the_dead_and_leaves_the_living() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    let session = store.session().unwrap();
    let place = Place::prepare(&settings(&folder)).unwrap();
    let living = Beacon::light(&place, false).unwrap();
    for n in 0..3 {
        let mut dead = open(&folder).unwrap();
        take(&mut dead, &claim(&n.to_string()));
        dead.bell().unwrap();
    }
    store.sweep();
    let mut left = place.sessions.names();
    let mut expected = [session.beacon_name(), living.session.beacon_name()];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(number(&store, "SELECT count(*) FROM claim"), 0);
}

/// As an earlier version, or a foreign client, may have written it.
#[test]
fn a_name_that_is_no_key_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder).unwrap();
    take(&mut store, &claim("a"));
    let copy = "INSERT INTO claim SELECT key || ' ', place, owner, token, ttl, expires, since, \
                session, pid, note FROM claim";
    store.conn.execute(copy, []).unwrap();
    let listed = store.list(Scope::Prefix("")).unwrap();
    let keys: Vec<_> = listed.iter().map(|holding| holding.key.as_str()).collect();
    assert_eq!(keys, ["a"]);
    store.close();
}
