//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// Calls `check` until it returns `Ok`, for at most `limit` and at least once. Returns the last
/// result.
///
/// # Errors
/// The last error of `check`.
pub fn wait_until<T, E>(limit: Duration, mut check: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + limit;
    loop {
        match check() {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
}
