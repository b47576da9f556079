//! SQLite through the `Backend` trait: two openings of one file, and real other processes.
#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "in a test, that is how it fails")]

mod faults;
mod holders;
mod hostile;
mod leases;
#[cfg(feature = "memory")]
mod model;
mod old_program;
mod older;
mod operations;
mod peer;
mod processes;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use tempfile::TempDir;
use tenure::backend::{Backend, Claim, Grant, HolderInfo, Mode, Owner, Scope};
use tenure::backends::Sqlite;
use tenure::{Attempt, Busy, Key, Result};

/// Long enough that nothing in these tests ends by itself.
const LEASE: Duration = Duration::from_secs(60);
/// Less than the time between two polls of the first in a queue: a hint within it was a wake-up.
const WOKEN: Duration = Duration::from_millis(900);
/// A limit for what has to happen, however loaded the machine is.
const SOON: Duration = Duration::from_secs(20);

/// A folder for one store.
struct TestContext {
    folder: TempDir,
}

impl TestContext {
    fn new() -> TestContext {
        TestContext { folder: tempfile::tempdir().unwrap() }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self) -> PathBuf {
        self.folder().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    async fn open(&self) -> Sqlite {
        Sqlite::open(&self.url()).await.unwrap()
    }

    /// The files of the sessions.
    fn sessions(&self) -> Vec<String> {
        let Ok(files) = std::fs::read_dir(self.folder().join("locks.db.d")) else {
            return Vec::new();
        };
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// The last handle waits for the end of its session only a moment when it is dropped.
    async fn until_no_session_is_left(&self) {
        within(SOON, async {
            while !self.sessions().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// Removes the store and what SQLite has beside it.
    fn delete(&self, endings: &[&str]) {
        for ending in endings {
            std::fs::remove_file(format!("{}{ending}", self.file().display())).unwrap();
        }
    }
}

fn claim(key: &str) -> Claim {
    let mut claim = Claim::new(Key::new(key).unwrap(), Owner::random(), LEASE);
    claim.holder_info = HolderInfo::new("tester", "here", std::process::id(), "");
    claim
}

fn waiting(key: &str) -> Claim {
    let mut claim = claim(key);
    claim.waits = true;
    claim
}

fn reader(key: &str) -> Claim {
    let mut claim = claim(key);
    claim.mode = Mode::Shared;
    claim
}

fn waiting_reader(key: &str) -> Claim {
    let mut claim = reader(key);
    claim.waits = true;
    claim
}

async fn acquire(store: &Sqlite, claim: &Claim) -> Grant {
    store.try_acquire(claim).await.unwrap().granted().unwrap()
}

async fn busy(store: &Sqlite, claim: &Claim) -> Busy {
    match store.try_acquire(claim).await.unwrap() {
        Attempt::Busy(busy) => busy,
        Attempt::Granted(grant) => panic!("granted {grant:?} to {claim:?}"),
    }
}

async fn renew(store: &Sqlite, claim: &Claim) -> Result<Duration> {
    store.renew(std::slice::from_ref(claim)).await.remove(0)
}

/// The keys that are held.
async fn held(store: &Sqlite) -> Vec<String> {
    let holdings = store.list(Scope::Prefix("")).await.unwrap();
    holdings.iter().map(|holding| holding.key.to_string()).collect()
}

/// Returns when a waiter is in the queue of a key that is held.
async fn until_a_waiter_is_queued(store: &Sqlite, key: &Key) {
    within(SOON, async {
        while store.list(Scope::Key(key)).await.unwrap()[0].waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn within<T>(limit: Duration, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, what).await.expect("came too late")
}

type Hint<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Whether a hint is still pending. The first call registers it.
fn waits<T>(hint: &mut Hint<'_, T>) -> bool {
    hint.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Registers a hint, and returns when the store has it.
async fn register<T>(store: &Sqlite, hint: &mut Hint<'_, T>) {
    assert!(waits(hint));
    // Commands are executed in order: after this response, the hint was registered and polled.
    held(store).await;
    assert!(waits(hint));
}
