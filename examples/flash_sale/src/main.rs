//! A flash sale that oversells. Each buyer is a process; of every article there is one piece less
//! than there are buyers. Four rounds: without a lock; with a lock; with a lock whose holder is
//! paused past its lease; and with such pauses and a fencing check on the stock.
//!
//! `cargo run -p flash_sale`, and `-- --url postgres://…` for another shop than one in SQLite.

mod buyer;
mod cleanup;
mod report;
mod round;
mod shop;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use crate::report::Report;
use crate::round::{Round, Sale};

/// Short, so that a pause past it does not take long.
const LEASE: Duration = Duration::from_secs(1);
use crate::cleanup::Cleanup;

/// Sells more than is in stock, and then shows what prevents it
#[derive(Parser)]
#[command(name = "flash_sale")]
struct Args {
    /// Where the stock and the locks are: postgres://, mysql:// or redis://; by default in SQLite
    /// files. The shop is removed at the end, also after Ctrl-C; the tables `tenure_…` of the locks
    /// stay in a database.
    #[arg(long)]
    url: Option<String>,
    /// How many processes buy.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=100))]
    buyers: u32,
    /// How many articles are sold, one after the other.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    articles: u32,
    /// The figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done =
        runtime.context("no runtime").and_then(|runtime| match (buyer::job(), cleanup::job()) {
            (Some(job), _) => runtime.block_on(buyer::buy(job)).map(|()| true),
            (_, Some(job)) => runtime.block_on(cleanup::clean_up(job)).map(|()| true),
            _ => runtime.block_on(sell(Args::parse())),
        });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_sale: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes in one line. Some messages already contain their cause.
fn explain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

/// Runs all rounds. Returns whether nothing was oversold with the lock and with the fence.
async fn sell(args: Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (shop, locks) = match args.url {
        Some(url) => (url.clone(), url),
        None => {
            let path = folder.path().display();
            (format!("sqlite://{path}/shop.db"), format!("sqlite://{path}/locks.db"))
        }
    };
    // A wrong URL is reported before anything is sold.
    shop::recognize(&shop)?;
    drop(tenure::connect(&locks).await?);
    let _cleanup = Cleanup::start(&shop, folder.path())?;
    let sale = Sale { shop, locks, buyers: args.buyers, articles: args.articles, lease: LEASE };
    let mut report = Report::new(&sale, !args.json);
    for round in Round::ALL {
        let outcome = round.run(&sale, &mut report).await?;
        report.add(round, outcome);
    }
    report.print();
    Ok(report.is_sound())
}
