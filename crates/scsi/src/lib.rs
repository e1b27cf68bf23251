//! SAM, SPC and SBC words: CDBs, sense data, parameter data.
