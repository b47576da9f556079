//! A hundred thousand locks held by one client: what they cost in memory, tasks and calls.

#![expect(unsafe_code, reason = "an allocator that counts has to be a global one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::Client;
use tenure_conformance::fault::{Faults, Faulty};

const LOCKS: usize = 100_000;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_locks_cost_little() {
    let memory = tenure::backends::Memory::new();
    let client = Client::new(memory);
    let keys: Vec<_> = (0..LOCKS).map(|number| format!("orders/{number}")).collect();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let tasks_before = tasks();
    let live_before = LIVE.load(Ordering::Relaxed);
    let mut guards = Vec::with_capacity(LOCKS);
    for key in &keys {
        guards.push(client.lock(key).acquire().await.unwrap());
    }
    // Long enough for every watch to be set up and every lock to be renewed more than once.
    tokio::time::sleep(Duration::from_secs(35)).await;
    for guard in &guards {
        guard.check().unwrap();
    }
    let tasks = tasks() - tasks_before;
    let bytes = (LIVE.load(Ordering::Relaxed) - live_before) / LOCKS;
    println!("{LOCKS} locks: {bytes} bytes each, {tasks} tasks");
    assert!(tasks <= 3, "{tasks} tasks");
    assert!(bytes < 1024, "{bytes} bytes a lock");
    drop(guards);
    client.flush().await.unwrap();
    assert!(client.list("").await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn renewals_go_in_batches() {
    let faulty =
        Faulty::new(tenure::backends::Memory::new(), Faults { hints: false, ..Faults::default() });
    let faulty = Arc::new(faulty);
    let client = Client::new(faulty.clone());
    let mut guards = Vec::new();
    for number in 0..5_000 {
        guards.push(client.lock(format!("k{number}")).acquire().await.unwrap());
    }
    let before = faulty.calls();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let calls = faulty.calls() - before;
    assert!(calls <= 20, "{calls} calls renewed 5000 locks");
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
}
