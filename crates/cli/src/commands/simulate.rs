//! `apportion simulate`.

use super::print;
use crate::args::{Output, SimulateArgs};
use crate::exit::{Exit, Failure};
use crate::table::{NONE, Table, duration};
use apportion_sim::plot;
use apportion_sim::report::{Figures, Happening, LEAST_WINDOW_MS, Report, simulate};
use apportion_sim::scenario::Scenario;
use std::fs;

pub(crate) fn run(args: SimulateArgs) -> Result<Exit, Failure> {
    let scenario =
        Scenario::load(&args.file).map_err(|problems| Failure::of_files(problems.to_string()))?;
    for warning in &scenario.warnings {
        eprintln!("apportion: warning: {warning}");
    }
    let progress = |done| {
        if args.seeds > 1 {
            eprintln!("apportion: {done} of {} runs", args.seeds);
        }
    };
    let report = simulate(&scenario, args.seed, args.seeds, progress).map_err(|violation| {
        Failure::ended(format!(
            "seed {}, {} ms into the run: {}; this breaks a promise, and is a bug: please report it with the scenario",
            violation.seed, violation.at_ms, violation.what
        ))
    })?;
    if let Some(path) = &args.plot {
        let file = path.display();
        let svg = plot::svg(&scenario, &report)
            .map_err(|error| Failure::ended(format!("could not draw {file}: {error}")))?;
        fs::write(path, svg)
            .map_err(|error| Failure::usage(format!("could not write {file}: {error}")))?;
    }
    match args.output {
        Output::Json => {
            let json = serde_json::to_string(&report)
                .map_err(|error| Failure::ended(format!("could not write JSON: {error}")))?;
            print(&json)?;
        }
        Output::Table => print(&render(&report))?,
    }
    Ok(Exit::Ok)
}

fn render(report: &Report) -> String {
    [
        head(report),
        regions(report),
        limiters(report),
        events(report),
        costs(report),
    ]
    .join("\n")
}

fn head(report: &Report) -> String {
    let per = report.per_ms.map(|ms| format!(" per {}", shown(ms)));
    let burst = report.burst.map(|burst| format!(", burst {burst}"));
    let runs = match report.runs {
        1 => format!("seed {}", report.first_seed),
        runs => format!("sums of {runs} runs"),
    };
    format!(
        "{}  {}, limit {}{}{}  {}, {runs}\n",
        report.policy,
        report.algorithm,
        report.limit,
        per.unwrap_or_default(),
        burst.unwrap_or_default(),
        shown(report.duration_ms),
    )
}

fn regions(report: &Report) -> String {
    let mut table = Table::new(["REGION", "ASKED", "ADMITTED", "REFUSED"]);
    let mut sums = [0; 3];
    for of in &report.regions {
        let counts = [of.asked, of.admitted, of.refused];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
        let [asked, admitted, refused] = counts.map(|count| count.to_string());
        table.row([of.region.clone(), asked, admitted, refused]);
    }
    let [asked, admitted, refused] = sums.map(|sum| sum.to_string());
    table.row(["all".into(), asked, admitted, refused]);
    table.render()
}

fn limiters(report: &Report) -> String {
    let mut table = Table::new([
        "LIMITER",
        "ADMITTED",
        "OF PERFECT",
        "BEYOND THE LIMIT",
        "STRANDED",
        "REFUSED WRONGLY",
    ]);
    let possible = report.perfect.admitted;
    let central = &report.central_store;
    let mut row = |name: String, of: &Figures| {
        let part = match possible {
            0 => NONE.to_owned(),
            possible => format!("{:.1}%", of.admitted as f64 / possible as f64 * 100.0),
        };
        table.row([
            name,
            of.admitted.to_string(),
            part,
            of.beyond_limit.to_string(),
            of.stranded.to_string(),
            of.refused_wrongly.to_string(),
        ]);
    };
    row("Apportion".into(), &report.apportion);
    row("a perfect limiter".into(), &report.perfect);
    row("static shares".into(), &report.static_shares);
    row(format!("one store in {}", central.region), &central.figures);
    let mut text = table.render();
    text.push_str(&format!(
        "one store in {} adds {:.0} ms to a request, on average",
        central.region, central.added_latency_ms
    ));
    if central.out_of_reach > 0 {
        text.push_str(&format!(
            "; {} units were asked for out of its reach",
            central.out_of_reach
        ));
    }
    text.push('\n');
    text
}

fn events(report: &Report) -> String {
    let mut table = Table::new(["AT", "WHAT HAPPENS", "95% OF PERFECT AFTER"]);
    for event in &report.events {
        table.row([shown(event.at_ms), event.what.clone(), settled(event)]);
    }
    table.render()
}

fn settled(event: &Happening) -> String {
    match (event.window_ms, event.settled_ms) {
        (None, _) => NONE.to_owned(),
        (Some(_), Some(ms)) => shown(ms),
        (Some(window_ms), None) if window_ms < LEAST_WINDOW_MS => "too short to tell".to_owned(),
        (Some(window_ms), None) => {
            format!("not within {}", shown(window_ms - LEAST_WINDOW_MS))
        }
    }
}

fn costs(report: &Report) -> String {
    let moved = match report.shares_moved_per_minute {
        Some(part) => format!(
            "shares moved by {:.1}% of the limit a minute; ",
            part * 100.0
        ),
        None => String::new(),
    };
    let seconds = report.duration_ms as f64 / 1_000.0 * report.runs as f64;
    format!(
        "{moved}regions sent each other {} messages, {} bytes: {:.0} bytes a second\n",
        report.sync_messages,
        report.sync_bytes,
        report.sync_bytes as f64 / seconds
    )
}

fn shown(ms: u64) -> String {
    duration(&ms.into())
}
