//! Files that are no store, or not for us, or replaced while in use; and the rights of those we
//! make.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use tenure::backend::Backend;
use tenure::backends::Sqlite;
use tenure::{Error, ErrorKind};

use crate::peer::Peer;
use crate::{Bench, RUNG, SOON, busy, claim, register, renew, take, waiting, within};

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
async fn what_is_not_a_store_is_refused_and_left_alone() {
    let bench = Bench::new();
    for (name, content) in [
        ("text", "hello, this is no database\n".repeat(100)),
        ("short", "x".to_owned()),
        ("zeros", "\0".repeat(8192)),
    ] {
        let path = bench.folder().join(name);
        std::fs::write(&path, &content).unwrap();
        let error = refusal(&path).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error:?}");
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.to_string().contains("not a tenure store"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn what_cannot_be_a_store_is_refused_with_a_hint() {
    let bench = Bench::new();
    let folder = bench.folder();
    std::os::unix::fs::symlink("nowhere", folder.join("link")).unwrap();
    drop(bench.open().await);
    std::fs::hard_link(bench.file(), folder.join("second.db")).unwrap();
    for (path, part) in [
        (folder.to_owned(), "not a regular file"),
        (folder.join("missing/x.db"), "create the folder"),
        (folder.join("link"), "symbolic link"),
        (bench.file(), "hard link"),
    ] {
        let error = refusal(&path).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test]
async fn an_empty_file_and_a_symbolic_link_are_stores() {
    let bench = Bench::new();
    std::fs::write(bench.file(), "").unwrap();
    let link = bench.folder().join("link.db");
    std::os::unix::fs::symlink("locks.db", &link).unwrap();
    let one = bench.open().await;
    let two = Sqlite::open(&format!("sqlite://{}", link.display())).await.unwrap();
    assert_eq!(one.path(), two.path());
    take(&one, &claim("a")).await;
    busy(&two, &claim("a")).await;
}

#[tokio::test]
async fn a_truncated_store_grants_nothing_and_is_not_repaired() {
    let bench = Bench::new();
    let store = bench.open().await;
    // Enough for a checkpoint, which brings the tables from the log into the file.
    for n in 0..300 {
        take(&store, &claim(&format!("key-{n}"))).await;
    }
    drop(store);
    bench.delete(&["-wal", "-shm"]);
    let whole = std::fs::read(bench.file()).unwrap();
    assert!(whole.len() >= 8192, "{}", whole.len());
    let half = &whole[..4096];
    std::fs::write(bench.file(), half).unwrap();
    let error = match Sqlite::open(&bench.url()).await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim("a")).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("damaged"), "{error:?}");
    assert_eq!(std::fs::read(bench.file()).unwrap(), half);
}

#[tokio::test]
async fn a_store_that_lost_only_its_main_file_says_so() {
    let bench = Bench::new();
    let mut peer = Peer::start(&bench.url());
    assert!(peer.ask("take a").starts_with("granted "));
    bench.delete(&[""]);
    let error = match Sqlite::open(&bench.url()).await {
        Err(error) => error,
        Ok(store) => store.try_acquire(&claim("a")).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("deleted"), "{error}");
}

#[tokio::test]
async fn a_store_that_is_replaced_is_lost_and_says_so() {
    let bench = Bench::new();
    let store = bench.open().await;
    let mine = claim("a");
    let token = take(&store, &mine).await.token;
    let mut hint = store.until_lost(&mine);
    register(&store, &mut hint).await;
    bench.delete(&["", "-wal", "-shm"]);
    let second = bench.open().await;
    assert!(take(&second, &claim("a")).await.token > token);
    assert_eq!(renew(&store, &mine).await.unwrap_err().kind(), ErrorKind::Lost);
    within(SOON, hint).await;
    let error = store.try_acquire(&claim("b")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("deleted or replaced"), "{error}");
}

#[tokio::test]
async fn helper_files_have_the_rights_of_the_store() {
    for (given, folder, beacon, bell) in
        [(0o600, 0o700, 0o600, 0o600), (0o660, 0o2770, 0o640, 0o660)]
    {
        let bench = Bench::new();
        std::fs::write(bench.file(), "").unwrap();
        set_mode(&bench.file(), given);
        let store = bench.open().await;
        let mine = claim("a");
        take(&store, &mine).await;
        let mut hint = store.until_lost(&mine);
        register(&store, &mut hint).await;
        let sessions = bench.folder().join("locks.db.d");
        assert_eq!(mode(&sessions), folder);
        assert_eq!(mode(&bench.folder().join("locks.db-wal")), given);
        let names = bench.sessions();
        assert_eq!(names.len(), 2, "{names:?}");
        for name in names {
            let expected = if name.ends_with(".live") { beacon } else { bell };
            assert_eq!(mode(&sessions.join(&name)), expected, "{name}");
        }
    }
}

#[tokio::test]
async fn a_new_store_is_private() {
    let bench = Bench::new();
    let store = bench.open().await;
    assert_eq!(mode(store.path()), 0o600);
    assert_eq!(mode(&bench.folder().join("locks.db-wal")), 0o600);
}

#[tokio::test]
async fn a_path_longer_than_a_socket_address_rings_as_well() {
    let bench = Bench::new();
    let folder = bench.folder().join("d".repeat(120));
    std::fs::create_dir(&folder).unwrap();
    let url = format!("sqlite://{}/locks.db", folder.display());
    let (one, two) = (Sqlite::open(&url).await.unwrap(), Sqlite::open(&url).await.unwrap());
    let (mine, waiter) = (claim("a"), waiting("a"));
    take(&one, &mine).await;
    busy(&two, &waiter).await;
    let mut hint = two.until_free(&waiter);
    register(&two, &mut hint).await;
    one.release(&mine).await.unwrap();
    within(RUNG, hint).await;
}

#[tokio::test]
async fn the_default_store_lies_in_the_state_folder() {
    let bench = Bench::new();
    let state = bench.folder();
    let mut peer = Peer::with(|command| {
        command.env("XDG_STATE_HOME", state);
    });
    assert_eq!(peer.ask("open sqlite:"), "open");
    assert_eq!(mode(&state.join("tenure")), 0o700);
    assert_eq!(mode(&state.join("tenure/locks.db")), 0o600);
    // A relative value is ignored, as its specification wants.
    let mut peer = Peer::with(|command| {
        command.env("XDG_STATE_HOME", "relative").env("HOME", state);
    });
    assert_eq!(peer.ask("open sqlite:"), "open");
    assert!(state.join(".local/state/tenure/locks.db").exists());
}

#[tokio::test]
async fn without_rights_a_store_is_denied() {
    let bench = Bench::new();
    drop(bench.open().await);
    let root = rustix::process::geteuid().is_root();
    set_mode(bench.folder(), 0o555);
    set_mode(&bench.file(), 0o400);
    // Root may do everything: then the peer is somebody else.
    let mut peer = Peer::with(|command| {
        use std::os::unix::process::CommandExt;
        if root {
            command.uid(65534).gid(65534);
        }
    });
    let existing = peer.ask(&format!("open {}", bench.url()));
    let new = peer.ask(&format!("open sqlite://{}/new.db", bench.folder().display()));
    set_mode(bench.folder(), 0o755);
    for answer in [&existing, &new] {
        assert!(answer.starts_with("Denied: cannot write in"), "{answer}");
        assert!(answer.contains("sqlite:PATH"), "{answer}");
    }
    assert!(existing.contains("locks.db"), "{existing}");
}
