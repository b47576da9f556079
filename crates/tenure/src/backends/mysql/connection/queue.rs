//! The requests of a connection that its task has not begun, and which thread runs the task.
//!
//! The thread that sends a request runs the task itself for a moment (see `support::driver`), so
//! that the request is written without a change of threads if the connection is idle. What follows,
//! reading the response above all, is done by the background. A caller that stalls therefore holds
//! nothing up: neither its own request nor those behind it.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

use super::Job;
use crate::support::driver::{Drive, SharedDriver};
use crate::support::sync::Mutex;

/// Sends requests to the task. When it is dropped, the task ends after the last one.
pub(super) struct JobSender {
    queue: Arc<JobQueue>,
    driver: Arc<SharedDriver<TaskDriver>>,
    runtime: Handle,
}

impl JobSender {
    /// Starts the task, which is given its queue.
    pub(super) fn start<F>(runtime: &Handle, task: impl FnOnce(Arc<JobQueue>) -> F) -> JobSender
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let queue = Arc::new(JobQueue::default());
        let task = TaskDriver(Box::pin(task(queue.clone())));
        let driver = Arc::new(SharedDriver::new(task));
        let ends = EndWithTask { queue: queue.clone(), driver: driver.clone() };
        runtime.spawn(async move {
            ends.driver.clone().run().await;
        });
        JobSender { queue, driver, runtime: runtime.clone() }
    }

    /// Adds a request, and runs the task on this thread until it has to wait. After the end of the
    /// task the request is dropped, which its sender sees.
    pub(super) fn send(&self, job: Job) {
        let unsent = self.queue.push(job);
        if unsent.is_none() {
            let _entered = self.runtime.enter();
            self.driver.drive();
        }
    }
}

impl fmt::Debug for JobSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSender").finish_non_exhaustive()
    }
}

impl Drop for JobSender {
    fn drop(&mut self) {
        self.queue.is_last.store(true, Ordering::SeqCst);
        self.queue.ending.wake();
    }
}

/// The requests that the task has not begun.
pub(super) struct JobQueue {
    /// `None` when the task has ended.
    jobs: Mutex<Option<VecDeque<Job>>>,
    /// Whether no request will be added any more.
    is_last: AtomicBool,
    /// Woken when `is_last` is set. A new request needs no waker: its sender runs the task.
    ending: AtomicWaker,
}

impl Default for JobQueue {
    fn default() -> JobQueue {
        JobQueue {
            jobs: Mutex::new(Some(VecDeque::new())),
            is_last: AtomicBool::new(false),
            ending: AtomicWaker::new(),
        }
    }
}

impl JobQueue {
    /// The next request; `None` after the last one.
    pub(super) async fn next(&self) -> Option<Job> {
        poll_fn(|context| {
            self.ending.register(context.waker());
            // In this order: what was added before the end is found.
            let is_last = self.is_last.load(Ordering::SeqCst);
            match self.jobs.lock().as_mut().and_then(VecDeque::pop_front) {
                None if !is_last => Poll::Pending,
                job => Poll::Ready(job),
            }
        })
        .await
    }

    /// Adds a request. Returns it if the task has ended.
    fn push(&self, job: Job) -> Option<Job> {
        match &mut *self.jobs.lock() {
            Some(jobs) => jobs.push_back(job),
            None => return Some(job),
        }
        None
    }
}

/// The task.
struct TaskDriver(BoxFuture<'static, ()>);

impl Drive for TaskDriver {
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

/// Ends the task when the background ends, also with its runtime: then no thread would read any
/// more.
struct EndWithTask {
    queue: Arc<JobQueue>,
    driver: Arc<SharedDriver<TaskDriver>>,
}

impl Drop for EndWithTask {
    fn drop(&mut self) {
        let unsent = self.queue.jobs.lock().take();
        // Not under the lock: who waits for a response is woken.
        drop(unsent);
        self.driver.end();
    }
}
