//! What a partition costs, against its duration, as a picture.

use plotters::prelude::*;
use std::error::Error;
use std::fs;
use std::path::Path;

/// The curves of one tolerance: seconds against percent.
pub(crate) struct Curve {
    pub(crate) tolerance: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curves: Vec<Curve>,
}

const SIZE: (u32, u32) = (1_000, 720);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(51, 51, 51);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Told apart by most who don't see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
];

/// Writes an SVG of the panels, two in a row.
pub(crate) fn write(path: &Path, title: &str, panels: &[Panel]) -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    draw(&mut text, title, panels)?;
    fs::write(path, text)?;
    Ok(())
}

fn draw(text: &mut String, title: &str, panels: &[Panel]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    let fail = |error: DrawingAreaErrorKind<_>| -> Box<dyn Error> { error.to_string().into() };
    root.fill(&WHITE).map_err(fail)?;
    let titled = root
        .titled(title, (FONT, 20).into_font().color(&INK))
        .map_err(fail)?;
    let areas = titled.split_evenly((panels.len().div_ceil(2), 2));
    for (area, panel) in areas.iter().zip(panels) {
        let points = || panel.curves.iter().flat_map(|curve| &curve.points);
        let longest = points().map(|point| point.0).fold(1.0, f64::max);
        let (low, high) = points().fold((0.0, 0.0), |(low, high): (f64, f64), point| {
            (low.min(point.1), high.max(point.1))
        });
        let room = ((high - low) * 0.08).max(1.0);
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.title, (FONT, 15).into_font().color(&INK))
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(52)
            .build_cartesian_2d((1.0..longest).log_scale(), (low - room)..(high + room))
            .map_err(fail)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_desc("seconds cut off")
            .x_label_formatter(&|s| format!("{s:.0}"))
            .y_label_formatter(&|percent| format!("{percent:.0}%"))
            .label_style((FONT, 12).into_font().color(&INK))
            .draw()
            .map_err(fail)?;
        for (curve, colour) in panel.curves.iter().zip(COLOURS) {
            chart
                .draw_series(LineSeries::new(
                    curve.points.iter().copied(),
                    colour.stroke_width(2),
                ))
                .map_err(fail)?
                .label(curve.tolerance)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            let dots = curve.points.iter();
            chart
                .draw_series(dots.map(|point| Circle::new(*point, 3, colour.filled())))
                .map_err(fail)?;
        }
        chart
            .configure_series_labels()
            .border_style(GRID)
            .background_style(WHITE.mix(0.8))
            .label_font((FONT, 12).into_font().color(&INK))
            .draw()
            .map_err(fail)?;
    }
    root.present().map_err(fail)?;
    Ok(())
}
