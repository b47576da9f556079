//! The sale, on every store: it oversells without a lock and behind a paused holder, and is exact
//! with a lock, and with lock and fence.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Arguments, Completion, Trial};
use serde_json::Value;
use tenure_servers::{Topology, require, shared};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials =
        vec![Trial::test("sqlite", || judge(None).map_err(|e| format!("{e:?}").into()))];
    for topology in [Topology::Mariadb, Topology::Postgres, Topology::Redis] {
        trials.push(Trial::ignorable_test(topology.name(), move || match shared(topology) {
            Err(error) if error.is_missing() && !require(topology.name()) => {
                Ok(Completion::ignored_with(error))
            }
            Err(error) => Err(error.into()),
            Ok(cluster) => match judge(Some(cluster.url())) {
                Ok(()) => Ok(Completion::Completed),
                Err(error) => Err(format!("{error:?}").into()),
            },
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn judge(url: Option<String>) -> Result<()> {
    let mut program = Command::new(env!("CARGO_BIN_EXE_flash_sale"));
    program.args(["--json", "--articles", "3", "--buyers", "4"]);
    program.args(url.iter().flat_map(|url| ["--url", url]));
    let output = program.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    let rounds: Value = serde_json::from_slice(&output.stdout)?;
    let number = |round: usize, name: &str| {
        rounds[round][name].as_i64().with_context(|| format!("{name} of round {round}"))
    };
    for round in 0..4 {
        ensure!(number(round, "stock")? == 9, "{rounds}");
        ensure!(number(round, "oversold")? == number(round, "sold")? - 9, "{rounds}");
    }
    // How much is oversold without a lock is a matter of chance; behind a paused holder it is not.
    ensure!(number(0, "oversold")? >= 0, "{rounds}");
    ensure!(number(1, "oversold")? == 0, "{rounds}");
    ensure!(number(2, "oversold")? == 3, "{rounds}");
    ensure!(number(3, "oversold")? == 0, "{rounds}");
    ensure!(number(3, "refused")? >= 3, "{rounds}");
    Ok(())
}
