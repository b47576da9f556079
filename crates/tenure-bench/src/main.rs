//! Side-by-side measurements: the subjects take turns in one run, so that a noisy machine disturbs
//! all of them alike. The result is the ratio to the first subject. `docs/bench.md` says what each
//! scenario measures.

mod allocations;
mod args;
mod compare;
mod consul;
mod cycle;
mod drawing;
mod embedded;
mod etcd;
mod fence;
mod figures;
mod hot;
mod memory;
mod mysql;
mod peer;
mod pgbench;
mod postgres;
mod queue;
mod redis;
mod run;
mod scenarios;
mod sql_recording;
mod usage;
mod warm;
mod zookeeper;

use std::process::ExitCode;

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};

use args::{Args, Order};

/// The exit code for bad input.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(done) = peer::work(&arguments).or_else(|| redis::run_worker(&arguments)) {
        // The process that started this one sees the exit code.
        return if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    match Order::parse(&arguments) {
        Ok(Order::Help) => {
            print!("{}", args::help());
            ExitCode::SUCCESS
        }
        Ok(Order::Measure(args)) => measure(&args),
        Err(reason) => {
            eprintln!("tenure-bench: {reason}");
            ExitCode::from(USAGE)
        }
    }
}

fn measure(args: &Args) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut all = Vec::new();
    for scenario in &args.scenarios {
        eprintln!("measuring {}: {}", scenario.0, scenario.1);
        match scenario.tables(args.plan) {
            Ok(tables) => {
                for table in &tables {
                    if args.json {
                        print!("{}", table.to_json());
                    } else {
                        println!("\n{}\n{table}", table.about);
                    }
                }
                all.extend(tables);
            }
            Err(error) => {
                eprintln!("{}: {error:#}", scenario.0);
                code = ExitCode::FAILURE;
            }
        }
    }
    if let Some(file) = &args.html
        && let Err(error) = std::fs::write(file, drawing::html(&all))
    {
        eprintln!("tenure-bench: {}: {error}", file.display());
        code = ExitCode::FAILURE;
    }
    code
}

/// A runtime with one thread.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// The kind of runtime that most services use.
fn workers() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}
