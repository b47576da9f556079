//! Another user who may write in the store's folder, and mounts that give a store a second name.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use tenure::backend::Backend;
use tenure::{Attempt, ErrorKind};

use crate::peer::Peer;
use crate::{Bench, SOON, busy, claim, register, take, waiting, within};

/// A user without any rights.
const NOBODY: u32 = 65534;

/// Goes on until it is dropped.
struct Attacker {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Attacker {
    fn start(mut attack: impl FnMut() + Send + 'static) -> Attacker {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                attack();
            }
        });
        Attacker { done, thread: Some(thread) }
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

/// A file that nobody but its owner may read, and which no store may touch.
fn victim(bench: &Bench) -> PathBuf {
    let path = bench.folder().join("victim");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    path
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let facts = fs::symlink_metadata(path).unwrap();
    (facts.uid(), facts.mode() & 0o7777)
}

/// As root: a store of another user's in that user's folder, which root then hands its files to.
fn give_away(bench: &Bench) {
    fs::write(bench.file(), "").unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [bench.folder().to_owned(), bench.file()] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
}

/// Opens the store, claims and waits, again and again, for as long as the attack should take.
async fn use_it(bench: &Bench, after_each: impl Fn()) {
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        // Whether it works is the attacker's choice; what it touches is not.
        if let Ok(store) = tenure::backends::Sqlite::open(&bench.url()).await {
            let mine = claim("a");
            let _refused = store.try_acquire(&mine).await;
            let _hung =
                tokio::time::timeout(Duration::from_millis(1), store.until_lost(&mine)).await;
        }
        after_each();
    }
}

#[tokio::test]
async fn a_folder_that_is_swapped_for_a_link_is_not_handed_over() {
    let bench = Bench::new();
    give_away(&bench);
    let victim = victim(&bench);
    let before = owner_and_mode(&victim);
    let (link, sessions) = (bench.folder().join("s"), bench.folder().join("locks.db.d"));
    symlink(&victim, &link).unwrap();
    let (one, two) = (link.clone(), sessions.clone());
    let attacker = Attacker::start(move || {
        let _absent = renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
    });
    use_it(&bench, || {
        // The next one makes the folder again.
        let _link = fs::remove_dir_all(&sessions);
        let _link = fs::remove_dir_all(&link);
        let _there = symlink(&victim, &link);
    })
    .await;
    drop(attacker);
    assert_eq!(owner_and_mode(&victim), before, "the link was followed");
}

#[tokio::test]
async fn helper_files_that_are_swapped_for_links_are_not_handed_over() {
    let bench = Bench::new();
    give_away(&bench);
    drop(bench.open().await);
    let victim = victim(&bench);
    let before = owner_and_mode(&victim);
    let (folder, target) = (bench.folder().to_owned(), victim.clone());
    let attacker = Attacker::start(move || {
        let sessions = folder.join("locks.db.d");
        for file in fs::read_dir(&sessions).into_iter().flatten().flatten() {
            if file.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                let _there = symlink(&target, folder.join("s"));
                let _gone = fs::rename(folder.join("s"), file.path());
            }
        }
    });
    use_it(&bench, || {
        let _none = fs::remove_dir_all(bench.folder().join("locks.db.d"));
    })
    .await;
    drop(attacker);
    assert_eq!(owner_and_mode(&victim), before, "a link was followed");
}

#[tokio::test]
async fn root_leaves_its_helper_files_to_the_owner_of_the_store() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    give_away(&bench);
    let store = bench.open().await;
    let mine = claim("a");
    take(&store, &mine).await;
    let mut hint = store.until_lost(&mine);
    register(&store, &mut hint).await;
    let sessions = bench.folder().join("locks.db.d");
    assert_eq!(owner_and_mode(&sessions), (NOBODY, 0o700));
    assert_eq!(bench.sessions().len(), 2);
    for name in bench.sessions() {
        assert_eq!(owner_and_mode(&sessions.join(name)).0, NOBODY);
    }
}

/// A command that runs what follows in mounts of its own, with the store's file mounted alone in
/// another folder; or `None` where this machine does not let us.
fn with_mount(from: &Path, to: &Path) -> Option<Command> {
    let script = r#"mount --bind "$1" "$2" && shift 2 && exec "$@""#;
    for flags in [["-m"].as_slice(), &["-U", "-r", "-m"]] {
        let made = Command::new("unshare")
            .args(flags)
            .args(["sh", "-c", script, "sh"])
            .args([from, to])
            .arg("true")
            .status();
        if made.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.args(flags).args(["sh", "-c", script, "sh"]).args([from, to]);
            return Some(command);
        }
    }
    None
}

#[tokio::test]
async fn a_store_that_is_mounted_as_a_single_file_is_refused() {
    let bench = Bench::new();
    let store = bench.open().await;
    take(&store, &claim("a")).await;
    let elsewhere = bench.folder().join("container");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("locks.db"), "").unwrap();
    let Some(command) = with_mount(&bench.file(), &elsewhere.join("locks.db")) else {
        return eprintln!("no mounts here: `unshare -m` and `unshare -Urm` are refused");
    };
    let mut peer = Peer::behind(command);
    let answer = peer.ask(&format!("open sqlite://{}/locks.db", elsewhere.display()));
    assert!(answer.starts_with("Unsupported: "), "two stores in one file: {answer}");
    assert!(answer.contains("mount the folder"), "{answer}");
    // The folder as a whole may be mounted anywhere.
    let command = with_mount(bench.folder(), &elsewhere).unwrap();
    let mut peer = Peer::behind(command);
    assert_eq!(peer.ask(&format!("open sqlite://{}/locks.db", elsewhere.display())), "open");
    assert_eq!(peer.ask("take a"), "busy");
}

#[tokio::test]
async fn a_waiter_whose_bell_cannot_be_rung_keeps_its_turn() {
    let bench = Bench::new();
    fs::write(bench.file(), "").unwrap();
    for (path, mode) in [(bench.folder().to_owned(), 0o777), (bench.file(), 0o666)] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let store = bench.open().await;
    let root = rustix::process::geteuid().is_root();
    // Root may ring any bell: then the holder is somebody else.
    let mut holder = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
    });
    assert_eq!(holder.ask(&format!("open {}", bench.url())), "open");
    assert!(holder.ask("take a").starts_with("granted "));
    // In the second place, its looks are rare; then it is the first.
    let (gone, next, last) = (waiting("a"), waiting("a"), waiting("a"));
    busy(&store, &gone).await;
    busy(&store, &next).await;
    let mut hint = store.until_free(&next);
    register(&store, &mut hint).await;
    busy(&store, &last).await;
    store.release(&gone).await.unwrap();
    for name in bench.sessions().iter().filter(|name| name.ends_with(".bell")) {
        let bell = bench.folder().join("locks.db.d").join(name);
        fs::set_permissions(bell, PermissionsExt::from_mode(0o000)).unwrap();
    }
    assert_eq!(holder.ask("release"), "true");
    within(SOON, hint).await;
    match store.try_acquire(&next).await.unwrap() {
        Attempt::Granted(_) => {}
        Attempt::Busy(busy) => panic!("its offer went on to the next: {busy:?}"),
    }
    busy(&store, &last).await;
}

#[tokio::test]
async fn root_does_not_follow_a_way_that_another_user_can_change() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let bench = Bench::new();
    let inner = bench.folder().join("inner");
    fs::create_dir(&inner).unwrap();
    let file = inner.join("locks.db");
    fs::write(&file, "").unwrap();
    for path in [bench.folder(), &inner, &file] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let url = format!("sqlite://{}", file.display());
    let error = tenure::backends::Sqlite::open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("run as that user"), "{error}");
    // The user itself may.
    let mut peer = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        command.uid(NOBODY).gid(NOBODY);
    });
    assert_eq!(peer.ask(&format!("open {url}")), "open");
    assert!(peer.ask("take a").starts_with("granted "));
    somebody_holds(&file);
}

/// The helper files of the user's own session are there.
fn somebody_holds(file: &Path) {
    let sessions = format!("{}.d", file.display());
    assert_eq!(fs::read_dir(sessions).unwrap().count(), 1);
}
