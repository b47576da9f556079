//! Where a client's own tasks run. A client over a server has a thread of its own: a blocked or
//! ended runtime of the user then stops neither renewals nor the release of what was dropped.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::thread::ThreadId;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};

/// Where tasks run.
#[derive(Debug)]
pub(crate) enum Home {
    /// On the runtime that the call comes from; where there is none, on a thread made for it.
    Caller(OnceLock<Thread>),
    /// On a thread of its own.
    Thread(Thread),
}

impl Home {
    pub(crate) fn caller() -> Home {
        Home::Caller(OnceLock::new())
    }

    pub(crate) fn thread() -> Result<Home> {
        Thread::start().map(Home::Thread)
    }

    /// Whether calls may be made in the caller's own task.
    pub(crate) fn is_caller(&self) -> bool {
        matches!(self, Home::Caller(_))
    }

    /// Whether this process is a copy that `fork` made of the client's: threads are not copied.
    pub(crate) fn is_forked(&self) -> bool {
        let thread = match self {
            Home::Caller(fallback) => fallback.get(),
            Home::Thread(thread) => Some(thread),
        };
        thread.is_some_and(|thread| thread.process != std::process::id())
    }

    /// Refuses what would wait for ever: after a `fork`, nobody works here.
    ///
    /// # Errors
    ///
    /// `Closed` in the copy.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_forked() { Err(ended_by_fork()) } else { Ok(()) }
    }

    /// Whether the current thread is the one that the tasks run on: it must not wait for them.
    pub(crate) fn is_here(&self) -> bool {
        match self {
            Home::Caller(_) => true,
            Home::Thread(thread) => thread.id == std::thread::current().id(),
        }
    }

    /// Polls once in the caller's own task. Timers work also where the caller has no runtime.
    pub(crate) fn poll_here<F: Future + Unpin>(
        &self,
        future: &mut F,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let _timers = match self {
            Home::Caller(fallback) if Handle::try_current().is_err() => {
                fallback_handle(fallback);
                fallback.get().map(|thread| thread.handle.enter())
            }
            Home::Caller(_) | Home::Thread(_) => None,
        };
        Pin::new(future).poll(context)
    }

    /// Runs a task. `false` if there is no runtime and no thread could be started, or if the thread
    /// stayed behind in the process that forked this one.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        if self.is_forked() {
            return false;
        }
        let handle = match self {
            Home::Thread(thread) => Some(thread.handle.clone()),
            Home::Caller(fallback) => {
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

    /// Runs a task to its end here and gives its output to whoever awaits, on any executor.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.check()?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = async move {
            // The caller may have gone away; then nobody wants the output.
            let _unwanted = sender.send(task.await);
        };
        if self.spawn(task) { receiver.await.map_err(|_| ended()) } else { Err(ended()) }
    }

    /// Runs a task here for as long as the caller awaits it: dropping the future drops the task.
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
        // When two come at once, the second thread ends at once again.
        let _second = fallback.set(Thread::start().ok()?);
    }
    fallback.get().map(|thread| thread.handle.clone())
}

fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the client's background thread has ended")
}

fn ended_by_fork() -> Error {
    let message = "this client belongs to the process before the fork; connect anew in the child";
    Error::new(ErrorKind::Closed, message)
}

/// A thread with a small runtime on it, which ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    id: ThreadId,
    /// Where it runs: not in what that process forks.
    process: u32,
    handle: Handle,
    stop: Arc<Notify>,
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
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("tenure".into())
            .spawn(move || {
                runtime.block_on(stopped.notified());
                // A call that hangs in a client library must not hang this thread.
                runtime.shutdown_background();
            })
            .map_err(unavailable)?;
        Ok(Thread { id: thread.thread().id(), process: std::process::id(), handle, stop })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.notify_one();
    }
}
