//! A report as a picture: what was admitted against what was possible, and how the budget lay with the regions meanwhile.

use crate::report::{Lower, Report, Timeline};
use crate::scenario::{Scenario, Trouble};
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::fmt::Display;

/// Why there is no picture.
#[derive(Debug)]
pub struct PlotError(String);

const SIZE: (u32, u32) = (1_000, 680);
const UPPER: u32 = 370;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(225, 225, 225);
const FAULT: RGBColor = RGBColor(214, 39, 40);
/// Told apart by most who don't see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
    RGBColor(240, 228, 66),
];
/// More would hide the picture.
const LEGEND_REGIONS_MAX: usize = 12;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// The report as an SVG.
///
/// # Errors
/// Where it can't be drawn.
pub fn svg(scenario: &Scenario, report: &Report) -> Result<String, PlotError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&root, scenario, report).map_err(|error| PlotError(error.to_string()))?;
    }
    Ok(text)
}

fn draw(root: &Area<'_>, scenario: &Scenario, report: &Report) -> Result<(), Box<dyn Error>> {
    root.fill(&WHITE)?;
    let titled = root.titled(&title(report), (FONT, 20).into_font().color(&INK))?;
    let (upper, lower) = titled.split_vertically(UPPER);
    let timeline = &report.timeline;
    let end_s = timeline.duration_ms as f64 / 1_000.0;

    let stacked = stacked(&timeline.admitted);
    let top = [&timeline.perfect, &timeline.asked].into_iter().flatten();
    let top = top.copied().fold(0.0, f64::max).max(1.0) * 1.15;
    let mut chart = ChartBuilder::on(&upper)
        .margin_right(20)
        .margin_top(4)
        .x_label_area_size(26)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end_s, 0.0..top)?;
    mesh(&mut chart, "units a second", "", |y| short(*y))?;
    shade(&mut chart, scenario, end_s, top, true)?;
    let asked = steps(timeline, &timeline.asked);
    chart
        .draw_series(LineSeries::new(
            asked,
            RGBColor(150, 150, 150).stroke_width(1),
        ))?
        .label("asked")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], RGBColor(150, 150, 150)));
    // From the top of the stack down: each covers what lies beneath it.
    for (i, sums) in stacked.iter().enumerate().rev() {
        let colour = COLOURS[i % COLOURS.len()];
        let area = AreaSeries::new(steps(timeline, sums), 0.0, colour.mix(1.0).filled());
        chart.draw_series(area.border_style(colour.stroke_width(0)))?;
    }
    for (i, region) in report.regions.iter().enumerate().take(LEGEND_REGIONS_MAX) {
        let colour = COLOURS[i % COLOURS.len()];
        chart
            .draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())?
            .label(format!("admitted in {}", region.region))
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], colour.filled()));
    }
    let perfect = steps(timeline, &timeline.perfect);
    chart
        .draw_series(LineSeries::new(perfect, INK.stroke_width(2)))?
        .label("a perfect limiter")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], INK.stroke_width(2)));
    legend(&mut chart)?;

    let most = timeline.parts.iter().flatten().copied().fold(0.0, f64::max);
    let top = (most * 1.1).max(1.0);
    let what = match timeline.lower {
        Lower::Shares => "share in force",
        Lower::Used(_) => "used of the window",
    };
    let mut chart = ChartBuilder::on(&lower)
        .margin_right(20)
        .margin_top(10)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end_s, 0.0..top)?;
    mesh(&mut chart, what, "seconds", |y| {
        format!("{:.0}%", y * 100.0)
    })?;
    shade(&mut chart, scenario, end_s, top, false)?;
    for (i, parts) in timeline.parts.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        chart.draw_series(LineSeries::new(
            steps(timeline, parts),
            colour.stroke_width(2),
        ))?;
    }
    root.present()?;
    Ok(())
}

fn title(report: &Report) -> String {
    let per = report.per_ms.map(apportion_core::policy::source::show_ms);
    let per = per.map(|per| format!(" per {per}")).unwrap_or_default();
    let burst = report.burst.map(|burst| format!(", burst {burst}"));
    let runs = match report.runs {
        1 => format!("seed {}", report.first_seed),
        runs => format!("mean of {runs} runs"),
    };
    format!(
        "{}: {} of {}{per}{}; {runs}",
        report.policy,
        report.algorithm,
        report.limit,
        burst.unwrap_or_default()
    )
}

fn mesh(
    chart: &mut Chart<'_, '_>,
    y: &str,
    x: &str,
    show: impl Fn(&f64) -> String,
) -> Result<(), Box<dyn Error>> {
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style((FONT, 14).into_font().color(&INK))
        .axis_desc_style((FONT, 15).into_font().color(&INK))
        .x_labels(13)
        .y_labels(6)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&show)
        .x_desc(x)
        .y_desc(y)
        .draw()?;
    Ok(())
}

/// Marks when something fails; with its number, which the caption explains.
fn shade(
    chart: &mut Chart<'_, '_>,
    scenario: &Scenario,
    end_s: f64,
    top: f64,
    named: bool,
) -> Result<(), Box<dyn Error>> {
    for (i, trouble) in scenario.troubles.iter().enumerate() {
        let from = trouble.at_ms as f64 / 1_000.0;
        let to = (trouble.until_ms as f64 / 1_000.0).min(end_s);
        let colour = FAULT.mix(0.12);
        chart.draw_series([Rectangle::new([(from, 0.0), (to, top)], colour.filled())])?;
        let edge = FAULT.mix(0.5).stroke_width(1);
        chart.draw_series([PathElement::new([(from, 0.0), (from, top)], edge)])?;
        // Of many, the first few have room for words.
        if named && !is_crowded(&scenario.troubles, i, end_s) {
            let style = (FONT, 13).into_font().color(&FAULT);
            let words = Text::new(
                trouble.begins.clone(),
                (from + end_s * 0.004, top * 0.985),
                style,
            );
            chart.draw_series([words])?;
        }
    }
    Ok(())
}

/// Whether the words for a fault would run into those of the one before or out of the picture.
fn is_crowded(troubles: &[Trouble], index: usize, end_s: f64) -> bool {
    let width_s = |trouble: &Trouble| trouble.begins.chars().count() as f64 * end_s * 0.0075;
    let from_s = |trouble: &Trouble| trouble.at_ms as f64 / 1_000.0;
    let own = &troubles[index];
    let runs_out = from_s(own) + width_s(own) > end_s;
    let mut earlier = troubles[..index].iter();
    let met = |other: &Trouble| {
        from_s(other) < from_s(own) + width_s(own) && from_s(own) < from_s(other) + width_s(other)
    };
    runs_out || earlier.any(met)
}

fn legend<'b: 'a, 'a>(chart: &mut Chart<'a, 'b>) -> Result<(), Box<dyn Error>> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 14).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// Each region's values on top of those before it.
fn stacked(by_region: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut sums: Vec<Vec<f64>> = Vec::with_capacity(by_region.len());
    for values in by_region {
        let below = sums.last();
        let sum = |(bin, value): (usize, &f64)| value + below.map_or(0.0, |below| below[bin]);
        let sum = values.iter().enumerate().map(sum).collect();
        sums.push(sum);
    }
    sums
}

/// A value holds for the whole of its bin.
fn steps(timeline: &Timeline, values: &[f64]) -> Vec<(f64, f64)> {
    let at = |bin: usize| {
        let ms = (bin as u64 * timeline.bin_ms).min(timeline.duration_ms);
        ms as f64 / 1_000.0
    };
    let both = |(bin, value): (usize, &f64)| [(at(bin), *value), (at(bin + 1), *value)];
    values.iter().enumerate().flat_map(both).collect()
}

fn short(value: f64) -> String {
    if value.fract().abs() < 1e-9 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

// === impl PlotError ===

impl Display for PlotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for PlotError {}
