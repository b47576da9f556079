//! What is expected: one row per scenario, one column per lock.
//!
//! `✔` exclusive and live, `U` two holders but a fence on reading and writing saves the data, `U!`
//! not even that, `T` stuck until the lease ends, `T+` for longer, `∞` until an operator comes,
//! `–` cannot happen. Two of them, as in `✔/T`, where the server decides.

/// What the catalogue expects, or why the fault cannot happen to this lock.
pub(super) fn expected(scenario: &str, lock: &str) -> Result<&'static str, &'static str> {
    let mut lines = TABLE.lines().map(str::trim).filter(|line| !line.is_empty());
    let head = lines.next().unwrap_or_default();
    let column = head.split_whitespace().position(|word| word == lock);
    let row = lines.find(|line| line.split_whitespace().next() == Some(scenario));
    let cell = column.and_then(|column| row?.split_whitespace().nth(column));
    match cell {
        None => Err("it is not in the table"),
        Some("–") => Err(why_not(scenario, lock)),
        Some(cell) => Ok(cell),
    }
}

fn why_not(_scenario: &str, _lock: &str) -> &'static str {
    "it cannot happen to this lock"
}

const TABLE: &str = "
scenario    redis-setnx-expire redis-getset redis-script redis-set-nx redis-unique redis-watchdog redlock-classic sqlite redis
oversell    U!                 U!           U!           U!           U            U              U!              U      U
pause       U!                 U!           U!           U!           U            U              U!              U      U
wrong-owner U!                 U!           U!           U!           ✔            ✔              ✔               ✔      ✔
";
