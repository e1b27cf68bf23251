//! Reservations of volumes: reported and changed.

use multipath::{ReservationOp, Reservations, VolumeHandle, VolumeSettings};

use super::Initiator;
use crate::error::{Error, ErrorKind};
use crate::volume_name::VolumeLocator;

impl Initiator {
    /// The reservations of a volume that is open by this name; of a stripe, those of each of its legs. None
    /// for a target that knows no reservations.
    ///
    /// # Errors
    /// As [`Initiator::run_reservation_op`]; of a stripe, as [`Initiator::open`] too.
    pub fn read_reservations(
        &mut self,
        volume: VolumeHandle,
        name: &str,
    ) -> Result<Vec<Reservations>, Error> {
        let name = VolumeLocator::parse(name)?;
        if name.chunk.is_none() {
            return Ok(self.report_reservations(volume)?.into_iter().collect());
        }
        let mut all = Vec::new();
        for urls in &name.legs {
            let first = urls.first().ok_or_else(|| Error::usage("a leg of the stripe names no volume"))?;
            let ((paths, _), terms) = (self.make_paths(urls)?, VolumeSettings::from_options(&first.options));
            let leg = self.inline.with_endpoint(|client, cx| client.open(cx, paths, terms));
            let leg = leg.ok_or_else(|| Error::new(ErrorKind::Failed, "too many volumes are open"))?;
            let shown: Vec<String> = urls.iter().map(ToString::to_string).collect();
            let leg = self.finish_open(leg, &shown.join(","))?;
            let report = self.report_reservations(leg);
            self.close(leg)?;
            all.extend(report?);
        }
        Ok(all)
    }

    fn report_reservations(&mut self, volume: VolumeHandle) -> Result<Option<Reservations>, Error> {
        use volume::{Failure::Refused, Refusal::Unsupported};
        match self.run_reservation_op(volume, ReservationOp::Report) {
            Err(Error { failure: Some(Refused(Unsupported)), .. }) => Ok(None),
            other => other,
        }
    }

    /// Asks about, or changes, a volume's reservations, and waits for the answer.
    /// ```no_run
    /// use blockwire_client::{VolumeHandle, Initiator, ReservationOp};
    ///
    /// fn is_reserved(initiator: &mut Initiator, volume: VolumeHandle) -> Result<bool, blockwire_client::Error> {
    ///     let report = initiator.run_reservation_op(volume, ReservationOp::Report)?;
    ///     Ok(report.is_some_and(|report| report.held.is_some()))
    /// }
    /// ```
    ///
    /// # Errors
    /// What the target refused; no answer in time.
    pub fn run_reservation_op(
        &mut self,
        volume: VolumeHandle,
        request: ReservationOp,
    ) -> Result<Option<Reservations>, Error> {
        let id = self.next_io_id();
        let acts = matches!(request, ReservationOp::Change(_));
        if !self.inline.with_endpoint(|client, cx| client.submit_reservation_op(cx, volume, id, request)) {
            return Err(Error::new(ErrorKind::Failed, "too many reservation requests are in flight"));
        }
        loop {
            if let Some((of, how)) =
                self.inline.take_from_endpoint(|client| client.poll_reservation_reply(volume))
                && of == id
            {
                return how.map_err(|failure| {
                    let error = self.operation_error(volume, failure, "reservation");
                    let is_unknown = acts && failure == volume::Failure::Failed(volume::Fault::PathLost);
                    if is_unknown { error.with_doubt_advice() } else { error }
                });
            }
            self.turn(None);
        }
    }
}
