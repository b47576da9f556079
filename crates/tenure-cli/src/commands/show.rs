//! `tenure show`: one lock, its holders and its waiters. The exit code says whether it is held.

use std::fmt::Write;

use tenure::{Holder, Holding, Key, blocking};

use crate::args::Show;
use crate::exit;
use crate::failure::Failure;
use crate::holder::{HolderLine, ModeOf, WaiterLine};
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
    let mut text = format!("{}\n", paint.bold(holding.key.as_str()));
    let mut line = |name: &str, value: String| {
        let _cannot_fail = writeln!(text, "  {name:9} {value}");
    };
    if let [holder] = &holding.holders[..] {
        line("holder", HolderLine(holder).to_string());
        facts(holder).for_each(|(name, value)| line(name, value));
        line("mode", ModeOf(holding).to_string());
    } else {
        line("mode", ModeOf(holding).to_string());
        line("holders", holding.holders.len().to_string());
        for holder in &holding.holders {
            line("", format!("- {}", HolderLine(holder)));
            let permits = holder.mode.weight();
            let permits = (!holder.mode.is_lock()).then(|| format!("permits {permits}"));
            let facts = facts(holder).map(|(name, value)| format!("{name} {value}"));
            let facts: Vec<_> = permits.into_iter().chain(facts).collect();
            line("", format!("  {}", facts.join(", ")));
        }
    }
    line("waiters", holding.waiters.len().to_string());
    for waiter in &holding.waiters {
        line("", format!("- {}", WaiterLine(waiter)));
    }
    text
}

/// What else is known about a holder.
fn facts(holder: &Holder) -> impl Iterator<Item = (&'static str, String)> {
    let token = holder.token.map(|token| ("token", token.to_string()));
    let held_for = holder.held_for.map(|time| ("held for", Short(time).to_string()));
    let ttl_left = holder.ttl_left.map(|time| ("ttl left", Short(time).to_string()));
    [token, held_for, ttl_left].into_iter().flatten()
}
