//! Another user that may write in the store's folder, and mounts that give a store a second name.

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
use crate::{SOON, TestContext, acquire, busy, claim, register, waiting, within};

/// A user without any rights.
const UNPRIVILEGED: u32 = 65534;

/// A thread that repeats an attack until this is dropped.
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
            let _ignored = thread.join();
        }
    }
}

/// A file that no store may touch.
fn victim(context: &TestContext) -> PathBuf {
    let path = context.folder().join("victim");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    path
}

fn owner_and_mode(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.mode() & 0o7777)
}

/// As root: creates a store that belongs to another user, in that user's folder. Root gives its
/// helper files to that user.
fn give_away(context: &TestContext) {
    fs::write(context.file(), "").unwrap();
    if rustix::process::geteuid().is_root() {
        for path in [context.folder().to_owned(), context.file()] {
            std::os::unix::fs::chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
        }
    }
}

/// Opens the store, acquires and waits, again and again, for as long as the attack should take.
async fn use_it(context: &TestContext, after_each: impl Fn()) {
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        // Whether it works is the attacker's choice; what it touches is not.
        if let Ok(store) = tenure::backends::Sqlite::open(&context.url()).await {
            let mine = claim("a");
            let _ignored = store.try_acquire(&mine).await;
            let _ignored =
                tokio::time::timeout(Duration::from_millis(1), store.until_lost(&mine)).await;
        }
        after_each();
    }
}

#[tokio::test]
async fn a_folder_that_is_replaced_by_a_link_is_not_followed() {
    let context = TestContext::new();
    give_away(&context);
    let victim = victim(&context);
    let before = owner_and_mode(&victim);
    let (link, sessions) = (context.folder().join("s"), context.folder().join("locks.db.d"));
    symlink(&victim, &link).unwrap();
    let (one, two) = (link.clone(), sessions.clone());
    let attacker = Attacker::start(move || {
        let _ignored = renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE);
    });
    use_it(&context, || {
        // The next opening creates the folder again.
        let _ignored = fs::remove_dir_all(&sessions);
        let _ignored = fs::remove_dir_all(&link);
        let _ignored = symlink(&victim, &link);
    })
    .await;
    drop(attacker);
    assert_eq!(owner_and_mode(&victim), before, "the link was followed");
}

#[tokio::test]
async fn helper_files_that_are_replaced_by_links_are_not_followed() {
    let context = TestContext::new();
    give_away(&context);
    drop(context.open().await);
    let victim = victim(&context);
    let before = owner_and_mode(&victim);
    let (folder, target) = (context.folder().to_owned(), victim.clone());
    let attacker = Attacker::start(move || {
        let sessions = folder.join("locks.db.d");
        for file in fs::read_dir(&sessions).into_iter().flatten().flatten() {
            if file.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                let _ignored = symlink(&target, folder.join("s"));
                let _ignored = fs::rename(folder.join("s"), file.path());
            }
        }
    });
    use_it(&context, || {
        let _ignored = fs::remove_dir_all(context.folder().join("locks.db.d"));
    })
    .await;
    drop(attacker);
    assert_eq!(owner_and_mode(&victim), before, "a link was followed");
}

#[tokio::test]
async fn root_gives_its_helper_files_to_the_owner_of_the_store() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let context = TestContext::new();
    give_away(&context);
    let store = context.open().await;
    let mine = claim("a");
    acquire(&store, &mine).await;
    let mut hint = store.until_lost(&mine);
    register(&store, &mut hint).await;
    let sessions = context.folder().join("locks.db.d");
    assert_eq!(owner_and_mode(&sessions), (UNPRIVILEGED, 0o700));
    assert_eq!(context.sessions().len(), 2);
    for name in context.sessions() {
        assert_eq!(owner_and_mode(&sessions.join(name)).0, UNPRIVILEGED);
    }
}

/// A command that runs what follows in mounts of its own, with the store's file mounted alone in
/// another folder; `None` if this machine does not allow that.
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
    let context = TestContext::new();
    let store = context.open().await;
    acquire(&store, &claim("a")).await;
    let elsewhere = context.folder().join("container");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("locks.db"), "").unwrap();
    let Some(command) = with_mount(&context.file(), &elsewhere.join("locks.db")) else {
        return eprintln!("no mounts here: `unshare -m` and `unshare -Urm` are refused");
    };
    let mut peer = Peer::behind(command);
    let response = peer.request(&format!("open sqlite://{}/locks.db", elsewhere.display()));
    assert!(response.starts_with("Unsupported: "), "two stores in one file: {response}");
    assert!(response.contains("mount the folder"), "{response}");
    // The folder as a whole may be mounted anywhere.
    let command = with_mount(context.folder(), &elsewhere).unwrap();
    let mut peer = Peer::behind(command);
    assert_eq!(peer.request(&format!("open sqlite://{}/locks.db", elsewhere.display())), "open");
    assert_eq!(peer.request("try_acquire a"), "busy");
}

#[tokio::test]
async fn a_waiter_whose_wake_socket_is_not_writable_keeps_its_offer() {
    let context = TestContext::new();
    fs::write(context.file(), "").unwrap();
    for (path, mode) in [(context.folder().to_owned(), 0o777), (context.file(), 0o666)] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let store = context.open().await;
    let root = rustix::process::geteuid().is_root();
    // Root may write to any socket: then the holder is another user.
    let mut holder = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        if root {
            command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        }
    });
    assert_eq!(holder.request(&format!("open {}", context.url())), "open");
    assert!(holder.request("try_acquire a").starts_with("granted "));
    // As the second of the queue it polls rarely; then it becomes the first.
    let (first, next, last) = (waiting("a"), waiting("a"), waiting("a"));
    busy(&store, &first).await;
    busy(&store, &next).await;
    let mut hint = store.until_free(&next);
    register(&store, &mut hint).await;
    busy(&store, &last).await;
    store.release(&first).await.unwrap();
    for name in context.sessions().iter().filter(|name| name.ends_with(".bell")) {
        let socket = context.folder().join("locks.db.d").join(name);
        fs::set_permissions(socket, PermissionsExt::from_mode(0o000)).unwrap();
    }
    assert_eq!(holder.request("release"), "true");
    within(SOON, hint).await;
    match store.try_acquire(&next).await.unwrap() {
        Attempt::Granted(_) => {}
        Attempt::Busy(busy) => panic!("the next waiter got its offer: {busy:?}"),
    }
    busy(&store, &last).await;
}

#[tokio::test]
async fn root_does_not_use_a_path_that_another_user_can_change() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let context = TestContext::new();
    let inner = context.folder().join("inner");
    fs::create_dir(&inner).unwrap();
    let file = inner.join("locks.db");
    fs::write(&file, "").unwrap();
    for path in [context.folder(), &inner, &file] {
        std::os::unix::fs::chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    let url = format!("sqlite://{}", file.display());
    let error = tenure::backends::Sqlite::open(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("run as that user"), "{error}");
    // The user itself may.
    let mut peer = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    });
    assert_eq!(peer.request(&format!("open {url}")), "open");
    assert!(peer.request("try_acquire a").starts_with("granted "));
    assert_one_session(&file);
}

/// The helper files of the user's own session exist.
fn assert_one_session(file: &Path) {
    let sessions = format!("{}.d", file.display());
    assert_eq!(fs::read_dir(sessions).unwrap().count(), 1);
}
