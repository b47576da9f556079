//! Futures of the engine that run on the caller's own thread, but do not depend on the caller.
//!
//! A request that is sent from the client's background thread costs two changes of threads: one to
//! start it there, one to bring its response back. So the engine lets the caller poll the future of
//! a request itself. What the background thread gave for free has to hold all the same:
//!
//! - **Timers and sockets** belong to the client's own runtime, whichever runtime or executor the
//!   caller has: the future is polled inside of the client's context.
//! - **Cancel safety.** A caller that drops its future must not stop a request halfway. So the
//!   future is owned by an [`InPlace`], whose drop does not drop it: it hands it to the background,
//!   which completes it and cleans up after it.
//! - **A caller that stalls**, because its runtime is blocked, must not hold up others. A backend
//!   may hold something for as long as a request is under way: a turn at a connection, a session
//!   that is being created. Renewals may need the same. So a future that was woken and that its
//!   caller does not poll soon is polled by the background ([`Unpolled`]); the caller finds its
//!   output later. Without a background thread, a future that is not ready at once is polled by a
//!   task of the caller's runtime beside the caller.
//!
//! **Invariant.** A future that was woken is polled within two ticks of the executor, by its caller
//! or by the background; and by one of them at a time, since both need the lock on its progress.
//! The lock is held only while a poll lasts, and no poll of the engine or of a backend blocks.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;

use crate::engine::ClientInner;
use crate::engine::executor::{PollFromBackground, Unpolled};
use crate::support::sync::Mutex;

/// A future that its caller polls. Dropped before its end, it is handed to `detach`, which has to
/// complete it.
pub(crate) struct InPlace<T, D>
where
    T: Send + 'static,
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    inner: Arc<ClientInner>,
    shared: Arc<SharedFuture<T>>,
    detach: Option<D>,
    was_polled: bool,
}

/// A future that its caller and the background may poll.
struct SharedFuture<T> {
    progress: Mutex<Progress<T>>,
    caller: AtomicWaker,
    /// Whether it was woken and not polled since.
    woken: AtomicBool,
    second: SecondPoller,
}

/// What polls a future beside its caller.
enum SecondPoller {
    /// The client's thread, if the caller does not.
    Thread(Arc<Unpolled>),
    /// A task on the caller's runtime.
    Task(AtomicWaker),
}

enum Progress<T> {
    Running(BoxFuture<'static, T>),
    /// Its output, which the caller has not seen yet.
    Done(T),
    /// The caller has its output, or it was detached.
    Ended,
}

impl<T, D> InPlace<T, D>
where
    T: Send + 'static,
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    pub(crate) fn new(
        inner: Arc<ClientInner>,
        future: impl Future<Output = T> + Send + 'static,
        detach: D,
    ) -> InPlace<T, D> {
        let second = match inner.executor.unpolled() {
            Some(unpolled) => SecondPoller::Thread(unpolled),
            None => SecondPoller::Task(AtomicWaker::new()),
        };
        let shared = Arc::new(SharedFuture {
            progress: Mutex::new(Progress::Running(Box::pin(future))),
            caller: AtomicWaker::new(),
            woken: AtomicBool::new(false),
            second,
        });
        InPlace { inner, shared, detach: Some(detach), was_polled: false }
    }

    /// Polls it inside of the client's context.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T> {
        // Before the poll: the background may complete it right after.
        self.shared.caller.register(context.waker());
        let mut progress = self.shared.progress.lock();
        self.inner.executor.in_context(|| self.shared.poll(&mut progress));
        match std::mem::replace(&mut *progress, Progress::Ended) {
            Progress::Done(output) => Poll::Ready(output),
            unfinished => {
                *progress = unfinished;
                drop(progress);
                if !std::mem::replace(&mut self.was_polled, true)
                    && let SecondPoller::Task(_) = self.shared.second
                {
                    // Without a runtime, the caller is the only one to poll it.
                    self.inner.executor.spawn(poll_as_task(self.shared.clone()));
                }
                Poll::Pending
            }
        }
    }
}

/// Polls a future as a task, until it is done or detached.
async fn poll_as_task<T: Send + 'static>(shared: Arc<SharedFuture<T>>) {
    poll_fn(|context| {
        if let SecondPoller::Task(task) = &shared.second {
            task.register(context.waker());
        }
        let mut progress = shared.progress.lock();
        shared.poll(&mut progress);
        if let Progress::Running(_) = *progress {
            return Poll::Pending;
        }
        drop(progress);
        shared.caller.wake();
        Poll::Ready(())
    })
    .await;
}

impl<T: Send + 'static> SharedFuture<T> {
    /// Polls it, if it has not ended. Must be called inside of the client's context.
    fn poll(self: &Arc<Self>, progress: &mut Progress<T>) {
        let Progress::Running(future) = progress else { return };
        self.woken.store(false, Ordering::SeqCst);
        let waker = Waker::from(self.clone());
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            *progress = Progress::Done(output);
        }
    }
}

impl<T: Send + 'static> Wake for SharedFuture<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_first = !self.woken.swap(true, Ordering::SeqCst);
        match &self.second {
            SecondPoller::Thread(unpolled) if is_first => unpolled.add(self.clone()),
            SecondPoller::Thread(_) => {}
            SecondPoller::Task(task) => task.wake(),
        }
        self.caller.wake();
    }
}

impl<T: Send + 'static> PollFromBackground for SharedFuture<T> {
    fn poll_if_unpolled(self: Arc<Self>) {
        let mut progress = self.progress.lock();
        if !self.woken.load(Ordering::SeqCst) {
            return;
        }
        self.poll(&mut progress);
        drop(progress);
        self.caller.wake();
    }
}

impl<T, D> Future for InPlace<T, D>
where
    T: Send + 'static,
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>) + Unpin,
{
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        InPlace::poll(&mut self, context)
    }
}

impl<T, D> Drop for InPlace<T, D>
where
    T: Send + 'static,
    D: FnOnce(&Arc<ClientInner>, BoxFuture<'static, T>),
{
    fn drop(&mut self) {
        let progress = std::mem::replace(&mut *self.shared.progress.lock(), Progress::Ended);
        if let SecondPoller::Task(task) = &self.shared.second {
            // The task has nothing left to poll.
            task.wake();
        }
        let Some(detach) = self.detach.take() else { return };
        match progress {
            Progress::Running(future) => detach(&self.inner, future),
            Progress::Done(output) => detach(&self.inner, Box::pin(std::future::ready(output))),
            Progress::Ended => {}
        }
    }
}
