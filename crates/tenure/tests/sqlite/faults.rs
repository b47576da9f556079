//! Files that are not a store, may not be used, or are replaced while in use; and the modes of the
//! files that a store creates.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tenure::backend::Backend;
use tenure::backends::Sqlite;
use tenure::{Error, ErrorKind};

use crate::peer::Peer;
use crate::{SOON, TestContext, WOKEN, acquire, busy, claim, register, renew, waiting, within};

async fn refusal(path: &Path) -> Error {
    Sqlite::open(&format!("sqlite://{}", path.display())).await.unwrap_err()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_file_that_is_not_a_store_is_refused_and_not_changed() {
    let context = TestContext::new();
    for (name, content) in [
        ("text", "hello, this is no database\n".repeat(100)),
        ("short", "x".to_owned()),
        ("zeros", "\0".repeat(8192)),
    ] {
        let path = context.folder().join(name);
        std::fs::write(&path, &content).unwrap();
        let error = refusal(&path).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.to_string().contains("not a tenure store"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_a_store_is_refused_with_a_hint() {
    let context = TestContext::new();
    let folder = context.folder();
    std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
    drop(context.open().await);
    std::fs::hard_link(context.file(), folder.join("second.db")).unwrap();
    for (path, part) in [
        (folder.to_owned(), "not a regular file"),
        (folder.join("missing/x.db"), "create the folder"),
        (folder.join("link"), "symbolic link"),
        (context.file(), "hard link"),
    ] {
        let error = refusal(&path).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn an_empty_file_and_a_symbolic_link_are_stores() {
    let context = TestContext::new();
    std::fs::write(context.file(), "").unwrap();
    let link = context.folder().join("link.db");
    std::os::unix::fs::symlink("locks.db", &link).unwrap();
    let one = context.open().await;
    let two = Sqlite::open(&format!("sqlite://{}", link.display())).await.unwrap();
    assert_eq!(one.path(), two.path());
    acquire(&one, &claim("a")).await;
    busy(&two, &claim("a")).await;
}

#[tokio::test]
async fn a_truncated_store_grants_nothing_and_is_not_repaired() {
    let context = TestContext::new();
    let store = context.open().await;
    // Enough for a checkpoint, which brings the tables from the log into the file.
    for n in 0..300 {
        acquire(&store, &claim(&format!("key-{n}"))).await;
    }
    drop(store);
    context.delete(&["-wal", "-shm"]);
    let whole = std::fs::read(context.file()).unwrap();
    assert!(whole.len() >= 8192, "{}", whole.len());
    let half = &whole[..4096];
    std::fs::write(context.file(), half).unwrap();
    let error = match Sqlite::open(&context.url()).await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim("a")).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("damaged"), "{error:?}");
    assert_eq!(std::fs::read(context.file()).unwrap(), half);
}

#[tokio::test]
async fn a_store_that_lost_only_its_main_file_says_so() {
    let context = TestContext::new();
    let mut peer = Peer::start(&context.url());
    assert!(peer.request("try_acquire a").starts_with("granted "));
    context.delete(&[""]);
    let error = match Sqlite::open(&context.url()).await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim("a")).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("deleted"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_replaced_is_lost_and_says_so() {
    let context = TestContext::new();
    let store = context.open().await;
    let mine = claim("a");
    let token = acquire(&store, &mine).await.token;
    let mut hint = store.until_lost(&mine);
    register(&store, &mut hint).await;
    context.delete(&["", "-wal", "-shm"]);
    let second = context.open().await;
    assert!(acquire(&second, &claim("a")).await.token > token);
    assert_eq!(renew(&store, &mine).await.unwrap_err().kind(), ErrorKind::Lost);
    within(SOON, hint).await;
    let error = store.try_acquire(&claim("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
}

#[tokio::test]
async fn helper_files_have_the_rights_of_the_store() {
    for (given, folder, liveness_file, wake_socket) in
        [(0o600, 0o700, 0o600, 0o600), (0o660, 0o2770, 0o640, 0o660)]
    {
        let context = TestContext::new();
        std::fs::write(context.file(), "").unwrap();
        set_mode(&context.file(), given);
        let store = context.open().await;
        let mine = claim("a");
        acquire(&store, &mine).await;
        let mut hint = store.until_lost(&mine);
        register(&store, &mut hint).await;
        let sessions = context.folder().join("locks.db.d");
        assert_eq!(mode(&sessions), folder);
        assert_eq!(mode(&context.folder().join("locks.db-wal")), given);
        let names = context.sessions();
        assert_eq!(names.len(), 2, "{names:?}");
        for name in names {
            let expected = if name.ends_with(".live") { liveness_file } else { wake_socket };
            assert_eq!(mode(&sessions.join(&name)), expected, "{name}");
        }
    }
}

#[tokio::test]
async fn a_new_store_is_private() {
    let context = TestContext::new();
    let store = context.open().await;
    assert_eq!(mode(store.path()), 0o600);
    assert_eq!(mode(&context.folder().join("locks.db-wal")), 0o600);
}

#[tokio::test]
async fn a_wake_socket_works_at_a_path_longer_than_a_socket_address() {
    let context = TestContext::new();
    let folder = context.folder().join("d".repeat(120));
    std::fs::create_dir(&folder).unwrap();
    let url = format!("sqlite://{}/locks.db", folder.display());
    let (one, two) = (Sqlite::open(&url).await.unwrap(), Sqlite::open(&url).await.unwrap());
    let (mine, waiter) = (claim("a"), waiting("a"));
    acquire(&one, &mine).await;
    busy(&two, &waiter).await;
    let mut hint = two.until_free(&waiter);
    register(&two, &mut hint).await;
    one.release(&mine).await.unwrap();
    within(WOKEN, hint).await;
}

#[tokio::test]
async fn the_default_store_is_in_the_state_folder() {
    let context = TestContext::new();
    let state = context.folder();
    let mut peer = Peer::with(|command| {
        command.env("XDG_STATE_HOME", state);
    });
    assert_eq!(peer.request("open sqlite:"), "open");
    assert_eq!(mode(&state.join("tenure")), 0o700);
    assert_eq!(mode(&state.join("tenure/locks.db")), 0o600);
    // A relative value is ignored, as its specification wants.
    let mut peer = Peer::with(|command| {
        command.env("XDG_STATE_HOME", "relative").env("HOME", state);
    });
    assert_eq!(peer.request("open sqlite:"), "open");
    assert!(state.join(".local/state/tenure/locks.db").exists());
}

#[tokio::test]
async fn without_rights_a_store_is_denied() {
    let context = TestContext::new();
    drop(context.open().await);
    let root = rustix::process::geteuid().is_root();
    set_mode(context.folder(), 0o555);
    set_mode(&context.file(), 0o400);
    // Root may do everything: then the peer is another user.
    let mut peer = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        if root {
            command.uid(65534).gid(65534);
        }
    });
    let existing = peer.request(&format!("open {}", context.url()));
    let new = peer.request(&format!("open sqlite://{}/new.db", context.folder().display()));
    set_mode(context.folder(), 0o755);
    for response in [&existing, &new] {
        assert!(response.starts_with("Denied: cannot write in"), "{response}");
        assert!(response.contains("sqlite:PATH"), "{response}");
    }
    assert!(existing.contains("locks.db"), "{existing}");
}
