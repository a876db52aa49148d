//! Axes: where a value stands in the picture, and which values are marked.

/// Ticks of an axis, about.
const TICKS: f64 = 5.0;

/// Ticks from zero, at most: twice of what a round step makes.
const TICKS_MAX: u32 = 12;

/// Largest value that is written out.
const WRITTEN_OUT_MAX: f64 = 1e15;

/// Values further apart than this are told apart on a logarithmic axis alone.
const SPAN_OF_LINEAR: f64 = 20.0;

/// Values that are marked each by itself, at most.
const MARKED_EACH: usize = 12;

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::html) enum Scale {
    /// From zero.
    Linear,
    Logarithmic,
    /// Linear, unless the values are too far apart.
    Fitting,
}

/// An axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    is_logarithmic: bool,
    /// Places of both ends.
    start: f64,
    end: f64,
}

impl Axis {
    /// Of values, from their lowest to their highest.
    pub(super) fn exact(scale: Scale, values: &[f64], ends: (f64, f64)) -> Option<Self> {
        let (low, high) = range(values.iter().copied())?;
        let positive = range(values.iter().copied().filter(|value| *value > 0.0));
        let is_logarithmic = match scale {
            Scale::Linear => false,
            Scale::Logarithmic => positive.is_some(),
            Scale::Fitting => low > 0.0 && high / low > SPAN_OF_LINEAR,
        };
        let (from, to) = match positive.filter(|_| is_logarithmic) {
            Some((low, high)) if low < high => (low, high),
            Some((only, _)) => (only / 2.0, only * 2.0),
            None => (low.min(0.0), high),
        };
        Some(Self { from, to, is_logarithmic, start: ends.0, end: ends.1 })
    }

    /// The same from one round value to another.
    pub(super) fn round(scale: Scale, values: &[f64], ends: (f64, f64)) -> Option<Self> {
        let exact = Self::exact(scale, values, ends)?;
        if exact.is_logarithmic {
            let below = one_two_five(exact.from / 10.0, exact.from * 1.000_001).last().unwrap_or(exact.from);
            let above = one_two_five(exact.to * 0.999_999, exact.to * 10.0).next().unwrap_or(exact.to);
            return Some(Self { from: below, to: above, ..exact });
        }
        let step = step(exact.to);
        Some(Self { to: (exact.to / step * 0.999_999).ceil() * step, ..exact })
    }

    pub(super) fn is_logarithmic(&self) -> bool {
        self.is_logarithmic
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let on_scale = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let (from, to) = (on_scale(self.from), on_scale(self.to));
        let part = if to > from { (on_scale(value) - from) / (to - from) } else { 0.0 };
        // Ends may be further apart than any number tells.
        let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
        self.start + part * (self.end - self.start)
    }

    /// Round values of the axis.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if !self.is_logarithmic {
            // The step is that of the values: the end of a round axis is a step of it.
            return ticks_of(step(self.to * 0.999_999), self.to * 1.000_001);
        }
        if self.to / self.from > 1000.0 {
            return powers_of_ten(self.from, self.to * 1.000_001).collect();
        }
        one_two_five(self.from, self.to * 1.000_001).collect()
    }

    /// Every 1, 2 and 5 times a power of ten on it.
    pub(super) fn one_two_five(&self) -> impl Iterator<Item = f64> {
        one_two_five(self.from, self.to)
    }

    /// The values themselves if they are few and the axis is logarithmic, else round values.
    pub(super) fn ticks_at(&self, values: &[f64]) -> Vec<f64> {
        let mut values = values.to_vec();
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        if self.is_logarithmic && values.len() <= MARKED_EACH { values } else { self.ticks() }
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |range, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// 1, 2 or 5 times a power of ten, so that a handful of steps reach the highest value.
fn step(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let rough = highest / TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
    step.unwrap_or(10.0 * power)
}

/// From zero up to `highest`.
fn ticks_of(step: f64, highest: f64) -> Vec<f64> {
    let ticks = (0..TICKS_MAX).map(|number| f64::from(number) * step);
    let mut ticks: Vec<f64> = ticks.take_while(|tick| *tick <= highest.max(0.0)).collect();
    // A step of nothing is none.
    ticks.dedup();
    ticks
}

/// Those from one value to another, of which there are none from nothing, nor up to no end.
pub(super) fn powers_of_ten(from: f64, to: f64) -> impl Iterator<Item = f64> {
    let is_range = from > 0.0 && from.is_finite();
    let first = 10_f64.powf(from.max(f64::MIN_POSITIVE).log10().floor()).max(f64::MIN_POSITIVE);
    std::iter::successors(is_range.then_some(first), |power| Some(power * 10.0))
        .take_while(move |power| *power <= to && power.is_finite())
        .filter(move |power| *power >= from)
}

fn one_two_five(from: f64, to: f64) -> impl Iterator<Item = f64> {
    powers_of_ten(from / 10.0, to)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * power))
        .filter(move |value| (from..=to).contains(value))
}

/// A value without the digits that only floating point adds.
pub(super) fn label(value: f64) -> String {
    if value.abs() > WRITTEN_OUT_MAX {
        return format!("{value:.0e}");
    }
    grouped(&format!("{}", (value * 1e4).round() / 1e4))
}

/// A number with its thousands set apart.
pub(in crate::html) fn grouped(text: &str) -> String {
    let (whole, rest) = text.find('.').map_or((text, ""), |point| text.split_at(point));
    let mut apart = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) && !apart.ends_with('-') {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_that_reach_the_highest() {
        let of = |highest| {
            let axis = Axis::round(Scale::Linear, &[highest], (0.0, 1.0)).unwrap();
            axis.ticks().into_iter().map(label).collect::<Vec<_>>()
        };
        assert_eq!(of(2.0), ["0", "0.5", "1", "1.5", "2"]);
        assert_eq!(of(2.06), ["0", "0.5", "1", "1.5", "2", "2.5"]);
        assert_eq!(of(730.0), ["0", "200", "400", "600", "800"]);
        assert_eq!(of(0.0), ["0"]);
        assert_eq!(
            one_two_five(40.0, 2400.0).map(label).collect::<Vec<_>>(),
            ["50", "100", "200", "500", "1,000", "2,000"]
        );
        assert_eq!(powers_of_ten(1.0, 178_000.0).count(), 6);
    }

    #[test]
    fn thousands_are_set_apart() {
        let labels = [1_234_567.0, 100.0, 12_000.5, -4000.0, 0.125].map(label);
        assert_eq!(labels, ["1,234,567", "100", "12,000.5", "-4,000", "0.125"]);
    }

    #[test]
    fn values_far_apart_have_a_logarithmic_axis_that_ends_at_round_ones() {
        let near = Axis::round(Scale::Fitting, &[1.0, 7.3], (0.0, 100.0)).unwrap();
        assert!(!near.is_logarithmic());
        assert_eq!((near.from, near.to, near.place(4.0)), (0.0, 8.0, 50.0));
        let far = Axis::round(Scale::Fitting, &[0.3, 73.0], (0.0, 100.0)).unwrap();
        assert!(far.is_logarithmic());
        assert_eq!((label(far.from), label(far.to)), ("0.2".to_owned(), "100".to_owned()));
        assert_eq!(far.ticks().into_iter().map(label).collect::<Vec<_>>()[..3], ["0.2", "0.5", "1"]);
        let zero = Axis::round(Scale::Fitting, &[0.0, 73.0], (0.0, 100.0)).unwrap();
        assert!(!zero.is_logarithmic(), "zero has no place on the other");
        assert_eq!(Axis::exact(Scale::Linear, &[], (0.0, 1.0)), None);
    }

    #[test]
    fn a_single_value_stands_in_the_middle() {
        let axis = Axis::exact(Scale::Logarithmic, &[16.0], (0.0, 100.0)).unwrap();
        assert!((axis.place(16.0) - 50.0).abs() < 1e-9);
        assert_eq!(axis.ticks_at(&[16.0, 16.0]), [16.0]);
    }
}
