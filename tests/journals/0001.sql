BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE events (
        id INTEGER NOT NULL,
        at FLOAT NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        who VARCHAR NOT NULL,
        what VARCHAR NOT NULL,
        detail VARCHAR NOT NULL,
        PRIMARY KEY (id)
    );
INSERT INTO "events" VALUES(1,1.79526224616922211647e+09,'qvemlxjx','','pid 12201','driver','epoch 1');
CREATE TABLE guards (
        label VARCHAR NOT NULL,
        name VARCHAR NOT NULL,
        state VARCHAR NOT NULL,
        ends_bill BOOLEAN NOT NULL,
        seq_wanted INTEGER NOT NULL,
        seq_read INTEGER NOT NULL,
        ends_at_read FLOAT,
        read_back_at FLOAT,
        ref VARCHAR NOT NULL,
        PRIMARY KEY (label, name)
    );
INSERT INTO "guards" VALUES('gpurun-t5t2bv-qvemlxjx-h4fg6d','keeper','none',1,2,0,NULL,NULL,'');
INSERT INTO "guards" VALUES('gpurun-t5t2bv-qvemlxjx-h4fg6d','fuse','armed',1,2,2,1795263479.0,1.79526224854081392287e+09,'');
CREATE TABLE instances (
        label VARCHAR NOT NULL,
        run_id VARCHAR NOT NULL,
        provider VARCHAR NOT NULL,
        account_id VARCHAR NOT NULL,
        offer_id VARCHAR NOT NULL,
        usd_per_hour TEXT NOT NULL,
        ceiling_at FLOAT NOT NULL,
        state VARCHAR NOT NULL,
        ending VARCHAR,
        gpu VARCHAR,
        gpu_count INTEGER NOT NULL,
        sent_at FLOAT,
        instance_id VARCHAR,
        id_from VARCHAR,
        first_seen_at FLOAT,
        created_at FLOAT,
        delete_acked_at FLOAT,
        gone_at FLOAT,
        evidence_json VARCHAR NOT NULL,
        PRIMARY KEY (label)
    );
INSERT INTO "instances" VALUES('gpurun-t5t2bv-qvemlxjx-h4fg6d','qvemlxjx','local','0123456789abcdef','this-machine','3.6',1.7952751268588171005e+09,'seen',NULL,NULL,0,1.79526224785823607446e+09,'gpurun-t5t2bv-qvemlxjx-h4fg6d','answer',1.79526224789131093025e+09,1.79526224788131690025e+09,NULL,NULL,'{}');
CREATE TABLE keeper_accounts (
        provider VARCHAR NOT NULL,
        account_id VARCHAR NOT NULL,
        listed_at FLOAT,
        auth_ok BOOLEAN NOT NULL,
        detail VARCHAR NOT NULL,
        orphans_json VARCHAR NOT NULL,
        PRIMARY KEY (provider, account_id)
    );
INSERT INTO "keeper_accounts" VALUES('local','0123456789abcdef',1.7952622468403689861e+09,1,'','[]');
CREATE TABLE keepers (
        id INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        version VARCHAR NOT NULL,
        beat INTEGER NOT NULL,
        beat_at FLOAT NOT NULL,
        PRIMARY KEY (id)
    );
INSERT INTO "keepers" VALUES(1,12203,'0.1.0',11,1795262256.82804);
CREATE TABLE ledger (
        id INTEGER NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        at FLOAT NOT NULL,
        kind VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        usd TEXT NOT NULL,
        since FLOAT,
        PRIMARY KEY (id)
    );
INSERT INTO "ledger" VALUES(1,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224686154389385e+09,'reserve','','0.48',NULL);
INSERT INTO "ledger" VALUES(2,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224789600396159e+09,'accrue','rent','0.000037768',1.79526224785823607446e+09);
INSERT INTO "ledger" VALUES(3,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224798679399485e+09,'accrue','boot','0.00009079',1.79526224789600396159e+09);
INSERT INTO "ledger" VALUES(4,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224814572405818e+09,'accrue','accept','0.00015893',1.79526224798679399485e+09);
INSERT INTO "ledger" VALUES(5,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224822684311865e+09,'accrue','ship','0.000081119',1.79526224814572405818e+09);
INSERT INTO "ledger" VALUES(6,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224823064589498e+09,'accrue','setup','0.000003803',1.79526224822684311865e+09);
INSERT INTO "ledger" VALUES(7,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224824331092832e+09,'accrue','data','0.000012665',1.79526224823064589498e+09);
INSERT INTO "ledger" VALUES(8,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1795262248.39581,'accrue','verify','0.000152499',1.79526224824331092832e+09);
INSERT INTO "ledger" VALUES(9,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224840150904656e+09,'release','','-0.48',NULL);
INSERT INTO "ledger" VALUES(10,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224840222501754e+09,'reserve','','1.349998617',NULL);
INSERT INTO "ledger" VALUES(11,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d',1.79526224844377088542e+09,'accrue','arm','0.000047961',1795262248.39581);
CREATE TABLE owner (
        id INTEGER NOT NULL,
        owner_id VARCHAR NOT NULL,
        machine VARCHAR NOT NULL,
        state_dir_id VARCHAR NOT NULL,
        trouble VARCHAR NOT NULL,
        PRIMARY KEY (id)
    );
INSERT INTO "owner" VALUES(1,'t5t2bv','0123456789abcdef','65024:2146527','');
CREATE TABLE phases (
        id INTEGER NOT NULL,
        run_id VARCHAR NOT NULL,
        label VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        digest VARCHAR NOT NULL,
        began_at FLOAT NOT NULL,
        ended_at FLOAT,
        result VARCHAR NOT NULL,
        detail VARCHAR NOT NULL,
        PRIMARY KEY (id)
    );
INSERT INTO "phases" VALUES(1,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','boot','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224789954304697e+09,1.79526224798983788486e+09,'ok','');
INSERT INTO "phases" VALUES(2,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','accept','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224799216699602e+09,1.79526224814721298219e+09,'ok','');
INSERT INTO "phases" VALUES(3,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','ship','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224814822411542e+09,1.79526224822813391685e+09,'ok','');
INSERT INTO "phases" VALUES(4,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','setup','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1795262248.22914,1.79526224823147606849e+09,'ok','');
INSERT INTO "phases" VALUES(5,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','data','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.7952622482323489189e+09,1.79526224824455690387e+09,'ok','');
INSERT INTO "phases" VALUES(6,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','verify','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224824559903149e+09,1795262248.39712,'ok','');
INSERT INTO "phases" VALUES(7,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','arm','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224839810395238e+09,1.79526224844472289082e+09,'ok','');
INSERT INTO "phases" VALUES(8,'qvemlxjx','gpurun-t5t2bv-qvemlxjx-h4fg6d','train','84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce',1.79526224844567704195e+09,NULL,'','');
CREATE TABLE runs (
        id VARCHAR NOT NULL,
        recipe_name VARCHAR NOT NULL,
        recipe_json VARCHAR NOT NULL,
        recipe_dir VARCHAR NOT NULL,
        provider VARCHAR NOT NULL,
        runs_dir VARCHAR NOT NULL,
        options_json VARCHAR NOT NULL,
        state VARCHAR NOT NULL,
        phase VARCHAR NOT NULL,
        ending VARCHAR,
        reason VARCHAR NOT NULL,
        exit_code INTEGER,
        error VARCHAR NOT NULL,
        driver_epoch INTEGER NOT NULL,
        driver_pid INTEGER,
        bundle_sha256 VARCHAR NOT NULL,
        progress_json VARCHAR NOT NULL,
        collected_json VARCHAR NOT NULL,
        created_at FLOAT NOT NULL,
        finished_at FLOAT,
        collected_at FLOAT,
        PRIMARY KEY (id)
    );
INSERT INTO "runs" VALUES('qvemlxjx','waits','{"name": "waits", "need": {"gpu": "none", "gpu_count": 1, "disk_gb": 1, "image": "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-devel", "vram_gb": null, "nvlink": false}, "providers": ["local"], "budget": {"max_usd_per_hour": "10.00", "max_usd": "13.00", "setup_minutes": "5", "run_minutes": "20", "grace_minutes": "0.5", "idle_minutes": "10", "late_collect_minutes": null, "keep_on_failure_minutes": "0"}, "setup": {"apt": [], "pip": [], "torch": null, "device": "cpu", "adam_atan2": "auto"}, "ship": [], "max_ship_mb": 500, "env": {}, "secrets": [], "data": {"build": "mkdir -p data/train data/test; touch data/train/dataset.json data/test/dataset.json", "fetch": [], "path": "data", "verify": {"files": {"*/dataset.json": 2}, "run": null}}, "check": null, "train": {"run": "while :; do sleep 0.2; done", "expect": []}, "watch": {"metrics": null, "pattern": null, "stop_when": null, "hang_minutes": "10"}, "collect": ["checkpoints", "logs"], "collect_to": null, "requires": null, "per_provider": {}}','/home/user/recipes','local','/home/user/runs','{"offer_id": null, "usd_per_hour": "3.6"}','active','train',NULL,'',NULL,'',1,12201,'84d835f6901592367fff9fde8bf97f57e2c8635f7f3088849dde7df0814949ce','{"step": null, "total_steps": null, "it_per_s": null, "samples_per_s": null, "loss": null, "gpu_util": null, "power_w": null, "gpu_mem_gib": null, "eta_s": null, "last_checkpoint_at": null}','[]',1.79526224550106501577e+09,NULL,NULL);
CREATE TABLE timers (
        label VARCHAR NOT NULL,
        seq INTEGER NOT NULL,
        kind VARCHAR NOT NULL,
        fires_at FLOAT NOT NULL,
        ends_at FLOAT NOT NULL,
        boot_id VARCHAR NOT NULL,
        fires_boot_s FLOAT NOT NULL,
        ends_boot_s FLOAT NOT NULL,
        state VARCHAR NOT NULL,
        acked_at FLOAT,
        fired_at FLOAT,
        fired_by VARCHAR,
        PRIMARY KEY (label, seq)
    );
INSERT INTO "timers" VALUES('gpurun-t5t2bv-qvemlxjx-h4fg6d',1,'setup',1.79526254685881710053e+09,1.79526260685881710048e+09,'31f7eaee-9a90-474a-b5aa-9873f8c39453',3755.184680038,3815.184680038,'superseded',1.79526224783339691162e+09,NULL,NULL);
INSERT INTO "timers" VALUES('gpurun-t5t2bv-qvemlxjx-h4fg6d',2,'run',1.79526344839897394186e+09,1.79526347839897394177e+09,'31f7eaee-9a90-474a-b5aa-9873f8c39453',4.65672483622800064025e+03,4.68672483622800064044e+03,'in_force',1.79526224882831096649e+09,NULL,NULL);
CREATE INDEX ix_events_run_id ON events (run_id)
    ;
CREATE INDEX ix_instances_run_id ON instances (run_id)
    ;
CREATE INDEX ix_instances_state ON instances (state)
    ;
CREATE INDEX ix_ledger_run_id ON ledger (run_id)
    ;
CREATE INDEX ix_phases_run_id ON phases (run_id)
    ;
CREATE INDEX ix_runs_state ON runs (state)
    ;
CREATE INDEX ix_timers_state ON timers (state)
    ;
CREATE TRIGGER ledger_is_never_changed BEFORE UPDATE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_is_never_cut BEFORE DELETE ON ledger
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;
