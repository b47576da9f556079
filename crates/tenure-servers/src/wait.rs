//! Waiting for something to come true, never longer than said.

use std::time::{Duration, Instant};

/// Asks until `check` answers `Ok`, at most for `limit`; the last answer is the result. It is asked
/// at least once.
///
/// # Errors
/// The last reason why not.
pub fn wait_until<T, E>(limit: Duration, mut check: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let end = Instant::now() + limit;
    loop {
        match check() {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
}
