//! The shop that oversells. Buyers are processes of their own; of every article there is one piece
//! less than there are buyers. Four rounds: without a lock; with a lock; with a lock and a holder
//! that is paused past its lease; and the same with a fence at the stock.
//!
//! `cargo run -p flash_sale`, and `-- --url postgres://…` for another shop than one in SQLite.

mod buyer;
mod report;
mod round;
mod shop;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use crate::report::Report;
use crate::round::{Round, Sale};

/// Sells more than there is, and then no more.
#[derive(Parser)]
#[command(name = "flash_sale")]
struct Args {
    /// Where the stock is and the locks are: postgres://, mysql:// or redis://; if not given, in
    /// files of SQLite that are removed at the end.
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
    let done = runtime.context("no runtime").and_then(|runtime| match buyer::job() {
        Some(job) => runtime.block_on(buyer::buy(job)).map(|()| true),
        None => runtime.block_on(sell(Args::parse())),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash_sale: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// All rounds; says whether lock and fence kept their promise.
async fn sell(args: Args) -> Result<bool> {
    let folder = tempfile::tempdir()?;
    let (shop, locks) = match args.url {
        Some(url) => (url.clone(), url),
        None => {
            let path = folder.path().display();
            (format!("sqlite://{path}/shop.db"), format!("sqlite://{path}/locks.db"))
        }
    };
    let sale = Sale { shop, locks, buyers: args.buyers, articles: args.articles, lease: LEASE };
    let mut report = Report::new(&sale, !args.json);
    for round in Round::ALL {
        let outcome = round.run(&sale, &mut report).await?;
        report.add(round, outcome);
    }
    report.print();
    Ok(report.is_sound())
}

/// Short, so that a pause past it does not take long to watch.
const LEASE: Duration = Duration::from_secs(1);
