//! Where a client's own tasks run. A client of a server has a thread of its own: then a runtime of
//! the caller that is blocked or has ended stops neither renewals nor the release of dropped
//! guards.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::support::sync::Mutex;

/// How often a [`Tick`] goes off. A future that was woken and not polled for one to two of them is
/// polled by the background.
const TICK: Duration = Duration::from_millis(20);

/// Runs the tasks of a client.
#[derive(Debug)]
pub(crate) enum Executor {
    /// On the runtime that the call comes from; where there is none, on a thread that is started
    /// for it.
    Caller(OnceLock<Thread>),
    /// On a thread of its own.
    Thread(Thread),
}

impl Executor {
    pub(crate) fn caller() -> Executor {
        Executor::Caller(OnceLock::new())
    }

    pub(crate) fn thread() -> Result<Executor> {
        Thread::start().map(Executor::Thread)
    }

    /// Whether calls may be made in the caller's own task.
    pub(crate) fn is_caller(&self) -> bool {
        matches!(self, Executor::Caller(_))
    }

    /// Whether this process is a forked child of the client's: threads are not copied by `fork`.
    pub(crate) fn is_forked(&self) -> bool {
        let thread = match self {
            Executor::Caller(fallback) => fallback.get(),
            Executor::Thread(thread) => Some(thread),
        };
        thread.is_some_and(|thread| thread.process != std::process::id())
    }

    /// Fails where a task would never run: in a forked child.
    ///
    /// # Errors
    ///
    /// `Closed` in a forked child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_forked() { Err(ended_by_fork()) } else { Ok(()) }
    }

    /// Whether the tasks run on the current thread: then it must not wait for them.
    pub(crate) fn is_here(&self) -> bool {
        match self {
            Executor::Caller(_) => true,
            Executor::Thread(thread) => thread.id == std::thread::current().id(),
        }
    }

    /// Does something, such as polling a future, inside of the runtime that tasks of this client
    /// run on: timers, sockets and tasks that it makes belong to that runtime, whichever runtime or
    /// executor the calling thread has.
    pub(crate) fn in_context<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = match self {
            Executor::Thread(thread) => Some(thread.handle.enter()),
            Executor::Caller(fallback) if Handle::try_current().is_err() => {
                fallback_handle(fallback);
                fallback.get().map(|thread| thread.handle.enter())
            }
            Executor::Caller(_) => None,
        };
        work()
    }

    /// A timer is about to be set from another thread: see [`Tick`].
    pub(crate) fn before_timer(&self) {
        if let Executor::Thread(thread) = self {
            thread.unpolled.tick.start();
        }
    }

    /// Where the background finds futures that their callers do not poll. `None` if there is no
    /// background that would go on while the caller's runtime is blocked.
    pub(crate) fn unpolled(&self) -> Option<Arc<Unpolled>> {
        match self {
            Executor::Caller(_) => None,
            Executor::Thread(thread) => Some(thread.unpolled.clone()),
        }
    }

    /// Runs a task. `false` if there is no runtime and no thread could be started, or in a forked
    /// child, where the thread does not exist.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        if self.is_forked() {
            return false;
        }
        let handle = match self {
            Executor::Thread(thread) => Some(thread.handle.clone()),
            Executor::Caller(fallback) => {
                Handle::try_current().ok().or_else(|| fallback_handle(fallback))
            }
        };
        match handle {
            Some(handle) => {
                handle.spawn(task);
                true
            }
            None => false,
        }
    }

    /// Runs a task to its end, also if this future is dropped, and returns its output. Can be
    /// awaited on any runtime.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.check()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = async move {
            // Fails if the caller dropped its future.
            let _unwanted = sender.send(task.await);
        };
        if self.spawn(task) { receiver.await.map_err(|_| ended()) } else { Err(ended()) }
    }

    /// Runs a task for as long as the caller awaits it: dropping this future drops the task.
    pub(crate) async fn run_while_wanted<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.check()?;
        let (mut sender, receiver) = tokio::sync::oneshot::channel();
        let task = async move {
            let output = tokio::select! {
                biased;
                output = task => output,
                () = sender.closed() => return,
            };
            let _unwanted = sender.send(output);
        };
        if self.spawn(task) { receiver.await.map_err(|_| ended()) } else { Err(ended()) }
    }
}

fn fallback_handle(fallback: &OnceLock<Thread>) -> Option<Handle> {
    if fallback.get().is_none() {
        // If two callers do this at the same time, the thread of the second ends at once.
        let _second = fallback.set(Thread::start().ok()?);
    }
    fallback.get().map(|thread| thread.handle.clone())
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the client's background thread has ended")
}

fn ended_by_fork() -> Error {
    let message =
        "this client belongs to the process before the fork; create a new one in the child";
    Error::new(ErrorKind::Closed, message)
}

/// A thread with a small runtime on it, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    id: ThreadId,
    /// Its process: the thread does not exist in a forked child.
    process: u32,
    handle: Handle,
    stop: Arc<Notify>,
    unpolled: Arc<Unpolled>,
}

/// A timer that goes off again and again while calls are made.
///
/// A runtime sleeps until its next timer. Setting one from another thread that is earlier than that
/// wakes the runtime, so that it can sleep for a shorter time: without any other timer, each call
/// would wake the client's thread only because of its time limit. Beside a timer that goes off
/// sooner than any usual limit, setting one costs no change of threads.
#[derive(Debug, Default)]
struct Tick {
    is_running: AtomicBool,
    /// Whether there was a call since it last went off.
    is_used: AtomicBool,
    started: Notify,
}

impl Tick {
    fn start(&self) {
        // Mostly it is set already, and is then not written, because threads share it.
        if !self.is_used.load(Ordering::SeqCst) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        if !self.is_running.load(Ordering::SeqCst) && !self.is_running.swap(true, Ordering::SeqCst)
        {
            self.started.notify_one();
        }
    }
}

/// A future that the background may poll in place of its caller.
pub(crate) trait PollFromBackground: Send + Sync {
    /// Polls it, unless its caller has done so since it was woken.
    fn poll_if_unpolled(self: Arc<Self>);
}

/// The futures that were woken lately, for the background to poll those that their callers do not.
///
/// A future is added whenever it is woken. Each tick looks only at what was added before the last
/// one, which nearly always was polled by its caller meanwhile.
#[derive(Default)]
pub(crate) struct Unpolled {
    tick: Tick,
    woken: Mutex<Vec<Arc<dyn PollFromBackground>>>,
}

impl Unpolled {
    pub(crate) fn add(&self, future: Arc<dyn PollFromBackground>) {
        self.woken.lock().push(future);
        self.tick.start();
    }

    async fn run(&self) {
        let tick = &self.tick;
        let background = Handle::current();
        let mut due = Vec::new();
        loop {
            tick.started.notified().await;
            loop {
                tick.is_used.store(false, Ordering::SeqCst);
                tokio::time::sleep(TICK).await;
                for future in std::mem::replace(&mut due, std::mem::take(&mut *self.woken.lock())) {
                    // A task of its own: if the future panics, this thread goes on.
                    background.spawn(async move { future.poll_if_unpolled() });
                }
                if due.is_empty() && !tick.is_used.load(Ordering::SeqCst) {
                    break;
                }
            }
            tick.is_running.store(false, Ordering::SeqCst);
            // A start that came before this moment found the tick running.
            if tick.is_used.load(Ordering::SeqCst) {
                tick.start();
            }
        }
    }
}

impl fmt::Debug for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unpolled({:?})", self.tick)
    }
}

impl Thread {
    fn start() -> Result<Thread> {
        let unavailable = |error: std::io::Error| {
            let message = format!("cannot start the client's background thread: {error}");
            Error::new(ErrorKind::Unavailable, message)
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(unavailable)?;
        let handle = runtime.handle().clone();
        let stop = Arc::new(Notify::new());
        let unpolled = Arc::new(Unpolled::default());
        let stopped = stop.clone();
        let polling = unpolled.clone();
        let thread = std::thread::Builder::new()
            .name("tenure".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = stopped.notified() => {}
                        () = polling.run() => {}
                    }
                });
                // A call that hangs in a client library must not block this thread.
                runtime.shutdown_background();
            })
            .map_err(unavailable)?;
        let id = thread.thread().id();
        Ok(Thread { id, process: std::process::id(), handle, stop, unpolled })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}
