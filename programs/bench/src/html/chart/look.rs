//! How a line looks: its colour, its stroke and its marks. Each tells lines apart without the others, for whoever cannot
//! see colours, or prints.

/// Colours that remain apart for colour-blind readers; `page.css` has them for light and for dark pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::html) enum Hue {
    Grey,
    Blue,
    Orange,
    Green,
    Purple,
    Olive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::html) enum Stroke {
    Solid,
    Dashed,
    Dotted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::html) struct Look {
    pub(in crate::html) hue: Hue,
    pub(in crate::html) stroke: Stroke,
}

impl Look {
    pub(in crate::html) const fn new(hue: Hue, stroke: Stroke) -> Self {
        Self { hue, stroke }
    }

    /// Its class in `page.css`.
    pub(super) fn class(self) -> &'static str {
        match self.hue {
            Hue::Grey => "grey",
            Hue::Blue => "blue",
            Hue::Orange => "orange",
            Hue::Green => "green",
            Hue::Purple => "purple",
            Hue::Olive => "olive",
        }
    }

    /// The attribute of a stroke.
    pub(super) fn dashes(self) -> &'static str {
        match self.stroke {
            Stroke::Solid => "",
            Stroke::Dashed => " stroke-dasharray=\"7 4\"",
            Stroke::Dotted => " stroke-dasharray=\"2 3\"",
        }
    }

    /// A mark at a place; `title` is what a pointer on it shows.
    pub(super) fn mark(self, (x, y): (f64, f64), title: &str) -> String {
        let (class, filled) = (self.class(), if self.stroke == Stroke::Solid { "mark" } else { "mark open" });
        let path = match self.hue {
            Hue::Blue | Hue::Green => {
                format!("M{:.1} {y:.1}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z", x - 3.2)
            }
            Hue::Orange => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
            Hue::Grey => format!("M{x:.1} {:.1}l3.6 6.4h-7.2z", y - 4.0),
            Hue::Purple | Hue::Olive => format!("M{x:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z", y - 4.2),
        };
        let title = if title.is_empty() { String::new() } else { format!("<title>{title}</title>") };
        format!("<path class=\"{filled} {class}\" d=\"{path}\">{title}</path>\n")
    }
}
