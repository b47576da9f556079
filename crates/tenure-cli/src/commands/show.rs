//! `tenure show`: one lock, its holder and its waiters. The exit code says whether it is held.

use std::fmt::Write;

use tenure::{Holding, Key, blocking};

use crate::args::Show;
use crate::exit;
use crate::failure::Failure;
use crate::holder::{HolderLine, WaiterLine};
use crate::output::{self, Paint, Short};

pub(super) fn run(client: &blocking::Client, args: &Show) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let holding = client.lock(&key).status()?;
    match &holding {
        _ if args.json => output::print_json(&holding)?,
        Some(holding) => output::print(&describe(holding, Paint::stdout()))?,
        None => output::print(&format!("`{key}` is free\n"))?,
    }
    Ok(if holding.is_some() { exit::DONE } else { exit::NO })
}

fn describe(holding: &Holding, paint: Paint) -> String {
    let holder = holding.holder();
    let mut text = format!("{}\n", paint.bold(holding.key.as_str()));
    let mut line = |name: &str, value: String| {
        let _cannot_fail = writeln!(text, "  {name:9} {value}");
    };
    line("holder", HolderLine(holder).to_string());
    if let Some(token) = holder.token {
        line("token", token.to_string());
    }
    if let Some(held_for) = holder.held_for {
        line("held for", Short(held_for).to_string());
    }
    if let Some(left) = holder.ttl_left {
        line("ttl left", Short(left).to_string());
    }
    line("waiters", holding.waiters.len().to_string());
    for waiter in &holding.waiters {
        line("", format!("- {}", WaiterLine(waiter)));
    }
    text
}
